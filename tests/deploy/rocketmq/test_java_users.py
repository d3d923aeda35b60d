"""RocketMQ's Java clients and tools that sign, unmodified: they may do what the rules of their user allow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dledger_client import Admin
from dledger_client.admin.security import AccessRule
from tests import needs
from tests.cluster.rocketmq import RocketmqCluster
from tests.cluster.test_remoting_users import cluster as cluster
from tests.cluster.users import secrets_of_users
from tests.deploy.rocketmq.clients import VERSIONS, JavaClient, java_client
from tests.waiting import LIMIT_MS, LIMIT_S

TOOLS = "org.apache.rocketmq.tools.command.MQAdminStartup"


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    return java_client(request.param, tmp_path_factory.mktemp("java"))


def signed(cluster: RocketmqCluster, client: JavaClient, *credentials: str) -> list[str]:
    command = client.command("Signed", ";".join(cluster.name_servers), "orders", *credentials)
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    assert not done.returncode, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def test_clients_sign_and_are_refused_without_rights_or_with_another_secret(cluster: RocketmqCluster, client: JavaClient) -> None:
    secrets = secrets_of_users(cluster)
    shop, audit = ("shop", secrets["shop"]), ("audit", secrets["audit"])
    lines = signed(cluster, client, *shop, *audit)
    assert lines[:10] == ["sent"] * 10
    assert sorted(lines[10:]) == [f"got body{number}" for number in range(10)]
    no_route = 10005  # of the client itself, which was refused the route
    for producer, code in ((audit, 16), (("shop", "wrong"), no_route), (("-", "-"), no_route)):
        assert signed(cluster, client, *producer, "audit", "wrong") == [f"refused {code}"] * 10 + ["nothing"]
    assert len(cluster.consume("orders", 11)) == 10


def test_tools_sign_by_their_file_of_keys(cluster: RocketmqCluster, client: JavaClient, tmp_path: Path) -> None:
    secret, servers = secrets_of_users(cluster)["shop"], ";".join(cluster.name_servers)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "logback_tools.xml").write_text("<configuration/>")
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: shop\nsecretKey: {secret}\n")

    def tool(*arguments: str) -> str:
        jars = ":".join(str(jar) for jar in client.jars.glob("*.jar") if "slf4j-nop" not in jar.name)  # 4.9.8 asks for logback
        java = [needs.program("java"), f"-Drocketmq.home.dir={tmp_path}", "-cp", jars, TOOLS, *arguments, "-n", servers]
        done = subprocess.run(java, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
        return done.stdout + done.stderr

    create = ("updateTopic", "-c", cluster.config.cluster, "-t", "made", "-r", "2", "-w", "2")
    assert "user shop may not administer topic made" in tool(*create)
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.change_rules([AccessRule("shop", "allow", "cluster", "*", "administer")])
    assert "success" in tool(*create)
    assert "made" in tool("topicList").split()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: shop\nsecretKey: wrong\n")
    assert "signed with another one" in tool("topicList")
