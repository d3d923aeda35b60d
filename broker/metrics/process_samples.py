"""Samples that every process has: requests, connections, memory, certificate."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from broker.metrics.samples import Samples
from broker.process.process_reader import open_files, started_s
from broker.security.certificate_watch import CertificateWatch
from broker.support.measures import ServiceMeasures
from broker.support.process_stats import ProcessStats
from dledger_wire.tcp.arrivals import Arrivals


def add_services(samples: Samples, measures: ServiceMeasures, refusals: Mapping[str, int], certificate: CertificateWatch) -> None:
    """What services counted, and the certificate."""
    for (method, code), took in measures.requests.items():
        samples.add("request_seconds", took, method, code)
    samples.add_each("refusals_total", dict(refusals))
    if certificate.expires_at_ms:
        samples.add("tls_certificate_expiry_timestamp_seconds", certificate.expires_at_ms / 1000)


def add_connections(samples: Samples, arrivals: Arrivals) -> None:
    """Those accepted by all ports of the process together."""
    samples.add_each("connections", arrivals.by_kind())


def add_process(samples: Samples, stats: ProcessStats) -> None:
    """The process; reads /proc, so it is called where that blocks nothing."""
    samples.add("build_info", 1, stats.version, platform.python_version())
    samples.add("process_cpu_seconds_total", stats.cpu_s)
    samples.add("process_resident_memory_bytes", stats.rss_bytes)
    samples.add("process_anonymous_memory_bytes", stats.anonymous_bytes)
    samples.add("process_open_files", open_files())
    samples.add("process_start_time_seconds", started_s())
    samples.add("loop_lag_seconds", stats.loop_lag_ms / 1000)
