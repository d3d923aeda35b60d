"""What compression costs and saves: of single large bodies, as producers do it, and of whole batches of small ones, as they do not.

    .venv/bin/python -m benchmarks.compression [--megabytes N]

JSON lines of orders, and random bytes.  Ratio: what is left.  "pays below": a link slower than that moves the smaller bytes, compressed on
one core and opened on another, sooner than the plain ones.  A batch would be opened again by the leader, since frames lie in the log one
by one in RocketMQ's layout; only the wire between producer and leader would carry less.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import numpy as np

from dledger_client.message import Message
from dledger_client.producer.compression import BodyCompression
from dledger_client.producer.record_encoder import encode_messages
from dledger_wire.frames.compress import compress, decompress
from dledger_wire.status import Compression

BODY_SIZES = (5_000, 16 << 10, 256 << 10)
BATCH_BODIES = (100, 1024)
BATCH_BYTES = 1 << 20
CASES = ((Compression.LZ4, 1), (Compression.ZSTD, 1), (Compression.ZSTD, 5), (Compression.ZLIB, 1), (Compression.ZLIB, 5))


def orders(draw: random.Random, size: int) -> bytes:
    lines: list[bytes] = []
    total = 0
    while total < size:
        row = {
            "order": draw.randrange(10**12),
            "user": f"user-{draw.randrange(10**6)}",
            "amount": round(draw.random() * 1000, 2),
            "region": draw.choice(["eu", "us", "asia"]),
            "status": draw.choice(["created", "paid", "sent"]),
        }
        lines.append(json.dumps(row).encode() + b"\n")
        total += len(lines[-1])
    return b"".join(lines)[:size]


def seconds_of(once: Callable[[], object], rounds: int) -> float:
    once()
    start = time.perf_counter()
    for _ in range(rounds):
        once()
    return (time.perf_counter() - start) / rounds


def show(name: str, data: bytes, rounds: int) -> None:
    for kind, level in CASES:
        small = compress(data, kind, level)
        packing = seconds_of(lambda: compress(data, kind, level), rounds)  # noqa: B023 - called at once
        opening = seconds_of(lambda: decompress(small, kind), rounds)  # noqa: B023 - called at once
        saved = len(data) - len(small)
        pays = f"{saved / max(packing, opening) * 8 / 1e6:8.0f} Mbit/s" if saved > 0 else "   never"
        figures = (
            f"ratio {len(small) / len(data):.3f}   {len(data) / packing / 1e6:7.0f} MB/s in   {len(data) / opening / 1e6:7.0f} MB/s out"
        )
        print(f"{name:<26} {kind.name.lower():<5} {level}   {figures}   pays below {pays}", flush=True)


def batch(draw: random.Random, body_bytes: int) -> bytes:
    """The frames of one batch as a producer sends them."""
    count = BATCH_BYTES // body_bytes
    messages = [Message("orders", orders(draw, body_bytes), tags="created", keys=f"o-{number}") for number in range(count)]
    ids = np.frombuffer(draw.randbytes(16 * count).hex().upper().encode(), np.uint8).reshape(count, 32)
    return b"".join(bytes(part) for part in encode_messages("orders", 0, messages, ids, born_ms=1, born_host=bytes(8)))


def producer_side(draw: random.Random) -> None:
    """What a producer's thread spends on a large message, whether it shrinks or not."""
    packing = BodyCompression(Compression.ZLIB, 5)
    for size in BODY_SIZES:
        for name, body in (("orders", orders(draw, size)), ("random", draw.randbytes(size))):
            message = Message("orders", body)
            took = seconds_of(lambda: packing.compressed(message), 50)  # noqa: B023 - called at once
            kept = "as it is" if packing.compressed(message) is message else "compressed"
            print(f"producer, {name}, {size:>7} B: {took * 1e6:8.0f} us a message, sent {kept}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--megabytes", type=int, default=16, help="how much each case compresses")
    megabytes = parser.parse_args().megabytes
    draw = random.Random(1)
    for size in BODY_SIZES:
        show(f"one body, {size} B", orders(draw, size), max(1, (megabytes << 20) // size))
    for size in BATCH_BODIES:
        show(f"batch, bodies of {size} B", batch(draw, size), megabytes)
    producer_side(draw)


if __name__ == "__main__":
    main()
