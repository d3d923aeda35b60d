"""The programs of the README, in Python and in Java, run as written beside each other: only the ports differ, and each message is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_client import PullConsumer
from tests import needs
from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import VERSIONS, java_client
from tests.docs.test_documents import BOOTSTRAP, ROOT
from tests.waiting import LIMIT_S

JAVA_SERVER = "127.0.0.1:20911"
PROGRAM = """
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public class Readme {{
    public static void main(String[] arguments) throws Exception {{
        {program}
        producer.shutdown();
        System.exit(0);
    }}
}}
"""


def program(language: str, known: str) -> str:
    """The first block of that language in the README; ``known`` is an address that it names."""
    found = re.search(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    assert known in found[1]
    return found[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(tmp_path / "data", nodes=1)
    try:
        made.start()
        made.cli_ok("topic", "create", "orders", "--queues", "1")
        yield made
    finally:
        made.end()


def sent(cluster: RocketmqCluster) -> list[tuple[bytes, str, str]]:
    with PullConsumer(cluster.bootstrap) as consumer:
        return [(message.body, message.tags, message.keys) for message in consumer.fetch("orders", 0, 0, 10)]


@pytest.mark.docs
def test_the_python_program_sends_its_message(cluster: RocketmqCluster) -> None:
    text = program("python", BOOTSTRAP).replace(BOOTSTRAP, cluster.bootstrap)
    subprocess.run([sys.executable, "-c", text], cwd=cluster.data, check=True, timeout=LIMIT_S)
    assert sent(cluster) == [(b"42 EUR", "paid", "o-1")]


@pytest.mark.docs
@pytest.mark.parametrize("version", VERSIONS)
def test_the_java_program_sends_the_same_message(cluster: RocketmqCluster, tmp_path: Path, version: str) -> None:
    client, source = java_client(version, tmp_path), tmp_path / "Readme.java"
    text = program("java", JAVA_SERVER).replace(JAVA_SERVER, cluster.name_servers[0])
    source.write_text(PROGRAM.format(program=text), encoding="utf-8")
    command = [needs.program("java"), "-cp", f"{client.jars}/*", str(source)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=LIMIT_S)
    assert sent(cluster) == [(b"42 EUR", "paid", "o-1")]
