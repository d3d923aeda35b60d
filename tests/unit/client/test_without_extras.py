"""The clients without their extras: nothing of them is imported, needed, or imported early where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = ("opentelemetry", "prometheus_client")  # imported when the application uses them
FASTER = ("isal",)  # used wherever it is installed

# A process in which the extras are not installed, as far as it can see.
ABSENT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS + FASTER}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""

USE = """
import asyncio, sys
import dledger_client, dledger_client.aio, dledger_client.metrics, dledger_client.tracing
from dledger_client import Message, TraceContext

import zlib
from dledger_wire.checksum import crc32
assert crc32(b"body") == zlib.crc32(b"body")

assert dledger_client.tracing.spans() is None
with dledger_client.tracing.processing([]):
    pass
context = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
assert b"traceparent" in Message("t", b"", properties=context.properties()).extras

async def main():
    async with dledger_client.aio.Producer("127.0.0.1:9", send_timeout_ms=1) as producer:
        future = producer.send_async(Message("t", b"one"))
        try:
            await future
        except dledger_client.DledgerError:
            return
        raise AssertionError("sent to nobody")

asyncio.run(main())
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_clients_work_without_them() -> None:
    run(ABSENT + USE)


def test_clients_import_none_of_them_where_they_are_installed() -> None:
    run(USE + f"assert not [name for name in sys.modules if name.partition('.')[0] in {EXTRAS}]")


@pytest.mark.parametrize(
    "module", ["dledger_client.tracing.otel_spans", "dledger_client.metrics.otel", "dledger_client.metrics.prometheus"]
)
def test_what_needs_one_says_which(module: str) -> None:
    run(
        ABSENT
        + f"try:\n import {module}\nexcept ModuleNotFoundError as error:\n assert error.name.partition('.')[0] in {EXTRAS}\nelse:\n 1/0"
    )


def test_a_provider_is_found_when_it_is_set_late() -> None:
    run("""
import dledger_client.tracing as tracing
from opentelemetry import trace
assert [tracing.spans() for _ in range(3)] == [None] * 3
from opentelemetry.sdk.trace import TracerProvider
assert tracing.spans() is None
trace.set_tracer_provider(TracerProvider())
assert tracing.spans() is tracing.spans() is not None
""")
