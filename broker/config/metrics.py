"""The block ``metrics`` of a cluster file: where each process serves its metrics and probes, and how many series it may have."""

from __future__ import annotations

from typing import Annotated

from broker.config.model import ConfigModel
from broker.config.values import ListenAddress, number


class MetricsConfig(ConfigModel):
    """Of every node, name server and spare node.  Without an address, here or of its own, a process serves none."""

    address: ListenAddress | None = None
    # So many topics have series of their own, those with the most traffic; the rest is summed.
    topics: Annotated[int, number(0, 10_000)] = 50
    # Of pairs of consumer group and topic, those with the oldest or the most messages to go.
    consumerGroups: Annotated[int, number(0, 10_000)] = 50
    # False: plain HTTP, although the other ports speak TLS.
    tls: bool = True
    # True: metrics need no credentials, although there are users.
    anonymous: bool = False
