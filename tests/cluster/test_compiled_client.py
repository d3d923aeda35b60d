"""The compiled client of ``scripts/wheels --compiled``: tests of the client with it, the bytes of the pure one, and a real cluster.

Runs in a folder with what the wheel has, a copy of the tests, and links to the rest of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from dledger_cli.local.private_cluster import PrivateCluster
from tests import needs

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("dledger", "store", "broker", "dledger_cli", "dledger_console", "dledger_drill", "dledger_offline", "pyproject.toml")
UNIT = (
    "accumulator",
    "bad_input",
    "client_metrics",
    "compression",
    "doubt",
    "faces",
    "misbehaving",
    "producer",
    "producer_id",
    "public_names",
    "send_many",
    "sending",
    "sending_over_groups",
    "spreading",
    "sync_face",
    "told_clearly",
    "tracing",
    "whole_topics",
)
IS_COMPILED = "import dledger_client, dledger_client.message_fields as fields; print(dledger_client.__file__, fields.__file__)"

ENCODED = """
import hashlib, itertools
import numpy as np
from dledger_client import Message
from dledger_client.producer.record_encoder import encode_messages
one_by_one = [
    Message("t", b"x" * size, tags=tags, keys=keys, properties=properties, flag=flag)
    for size, tags, keys, properties, flag in itertools.product(
        (0, 100, 70_000), ("", "a", "ä"), ("", "k1 k2", ["o-1"]), (None, {"region": "eu", "ö": "ü"}), (0, -7)
    )
] + [Message("t", b"later", delay_level=3), Message("t", b"then", deliver_at_ms=1_800_000_000_000)]
alike = [Message("t", b"%04d" % number) for number in range(1000)]
for messages in (one_by_one, alike, one_by_one[:3], [each.clone() for each in one_by_one]):
    ids = np.full((len(messages), 32), ord("A"), np.uint8)
    parts = encode_messages("t", 3, messages, ids, born_ms=1_700_000_000_000, born_host=bytes([127, 0, 0, 1, 0, 0, 1, 2]))
    print(hashlib.sha256(b"".join(map(bytes, parts))).hexdigest())
"""

SENT = """
import asyncio, os, sys
from dledger_client import Admin, Message, Producer, PullConsumer, aio
from dledger_client.errors import InvalidArgumentError, MessageTooLargeError
bootstrap = sys.argv[1]
bodies = [b"%06d" % number for number in range(50_000)]
with Admin(bootstrap) as admin:
    for topic in ("many", "loop"):
        admin.create_topic(topic, queues=4)
with Producer(bootstrap, group="compiled") as producer:
    futures = [producer.send_async(Message("many", body, keys=f"o-{number % 7}")) for number, body in enumerate(bodies[:1000])]
    futures += [producer.send_async(Message("many", body)) for body in bodies[1000:]]
    producer.flush()
    assert all(future.exception() is None for future in futures)
    assert isinstance(producer.send_async(Message("many", b"x"), queue_id=99).exception(), InvalidArgumentError)
    assert isinstance(producer.send_async(Message("many", bytes(64 << 20))).exception(), MessageTooLargeError)
    child = os.fork()
    if not child:  # what a fork inherits takes no messages, and does not hang
        os._exit(0 if "forked" in str(producer.send_async(Message("many", b"x")).exception()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

async def main() -> None:
    async with aio.Producer(bootstrap) as producer:
        results = await asyncio.gather(*[producer.send(Message("loop", body)) for body in bodies[:2000]])
        assert len({(each.queue_id, each.queue_offset) for each in results}) == 2000

asyncio.run(main())
for topic, sent in (("many", bodies), ("loop", bodies[:2000])):
    with PullConsumer(bootstrap) as consumer:
        found = []
        for (_, queue_id), held in consumer.offsets(topic).items():
            offset = held.min_offset
            while offset < held.max_offset:
                chunk = consumer.fetch(topic, queue_id, offset, 10_000)
                offset = chunk[-1].queue_offset + 1
                found += [message.body for message in chunk]
    assert sorted(found) == sent, (topic, len(found))
"""


def has_compiler() -> bool:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(500),
]


@pytest.fixture(scope="module")
def compiled(module_folder: Path) -> Path:
    """A folder to run Python in, with the compiled client."""
    if not has_compiler():
        needs.lacking("no C compiler, or no headers of Python (Debian: apt-get install gcc python3-dev)")
    call(ROOT, str(ROOT / "scripts" / "wheels"), "--compiled", str(module_folder / "wheels"))
    (wheel,) = (module_folder / "wheels").glob("dledger_client-*.whl")
    assert "none-any" not in wheel.name
    folder = module_folder / "folder"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    package, fields = map(Path, python(folder, "-c", IS_COMPILED).split())
    assert folder in package.parents
    assert (fields.suffix, fields.parent) == (".so", package.parent)
    return folder


def call(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def python(folder: Path, *arguments: str) -> str:
    return call(folder, sys.executable, *arguments)


def test_tests_of_the_client_pass_with_the_compiled_one(compiled: Path) -> None:
    files = [f"tests/unit/client/test_{name}.py" for name in UNIT]
    assert " passed" in python(compiled, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)


def test_records_are_those_of_the_pure_client(compiled: Path) -> None:
    found = python(compiled, "-c", ENCODED)
    assert len(found.split()) == 4
    assert found == python(ROOT, "-c", ENCODED)


def test_messages_sent_by_it_are_stored_once(compiled: Path, tmp_path: Path) -> None:
    with PrivateCluster(tmp_path / "cluster") as cluster:
        cluster.start()
        python(compiled, "-c", SENT, cluster.bootstrap)
