"""The image of cluster-configs/containers: what it says of itself, what is in it, and its health check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from tests.deploy.containers import IMAGE_VERSION, ROOT, Container, Image, Network
from tests.waiting import wait_until

CLUSTER = """\
cluster: one
groups: [{name: g0, nodes: [{id: n0, address: "one:10911"}]}]
metrics: {address: "0.0.0.0:9464"}
"""

pytestmark = pytest.mark.xdist_group("image")


@pytest.fixture
def container(image: Image, tmp_path: Path) -> Iterator[Container]:
    """A container for the only node of a cluster, not started yet."""
    network = Network(tmp_path)
    network.name("one")
    (tmp_path / "data").mkdir()
    (tmp_path / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    made = Container(
        image,
        "one",
        network,
        tmp_path / "one",
        {"/var/lib/dledger": tmp_path / "data", "/etc/dledger/cluster.yaml": tmp_path / "cluster.yaml"},
    )
    try:
        yield made
    finally:
        made.remove()
        network.close()


def test_the_image_says_what_an_engine_needs(image: Image) -> None:
    config = image.config
    assert config["User"] == "10001:10001"
    assert list(config["Volumes"]) == ["/var/lib/dledger"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "dledger-probe"]
    assert config["Entrypoint"] == ["dledger"]
    exposed = {int(port.partition("/")[0]) for port in config["ExposedPorts"]}
    compose = ClusterConfig.load(str(ROOT / "cluster-configs" / "containers" / "cluster.yaml"))
    assert compose.metrics.address is not None
    assert exposed >= {10911, 9876, 19876, int(compose.metrics.address.rpartition(":")[2])}


def test_the_image_has_the_command_line_and_nothing_of_the_build(container: Container) -> None:
    container.start(["-c", "exec sleep infinity"], ["sh"])
    assert container.execute(["dledger", "--version"]).stdout == f"dledger {IMAGE_VERSION}\n"
    for command in ("node", "nameserver", "console", "status", "produce", "consume", "certs", "verify"):
        assert "Usage: dledger" in container.execute(["dledger", command, "--help"]).stdout
    assert container.execute(["python3", "-c", "import nicegui"]).returncode == 0
    left = container.execute(["sh", "-c", "ls -d /src /wheels /opt/dledger/bin/pip /root/.cache 2>/dev/null || true"]).stdout
    assert left == ""
    writable = container.execute(["find", "/", "-xdev", "-writable", "-type", "f"], check=False).stdout
    assert writable == "", "the user can change files of the image"
    assert container.execute(["dledger", "node", "--check", "--config", "/etc/dledger/cluster.yaml", "--id", "n0"]).returncode == 0


def test_a_node_is_healthy_while_it_runs_and_ends_with_success(container: Container) -> None:
    container.start(["node", "--config", "/etc/dledger/cluster.yaml", "--id", "n0", "--data", "/var/lib/dledger"])
    wait_until(container.healthy, lambda: f"healthy\n{container.log}")
    wait_until(lambda: container.execute(["dledger-probe", "127.0.0.1:9464/readyz"], check=False).returncode == 0, "ready")
    assert "one:10911" in container.execute(["dledger", "status"]).stdout, "commands find the cluster file"
    wrong = container.execute(["dledger-probe", "127.0.0.1:9464/nothing"], check=False)
    assert (wrong.returncode, wrong.stderr) == (1, "127.0.0.1:9464/nothing: 404: expected /metrics, /livez or /readyz\n")
    assert container.stop() == 0, container.log
    assert not container.healthy()


def test_an_error_is_one_line_and_a_status(container: Container) -> None:
    container.start(["node", "--config", "/etc/dledger/cluster.yaml", "--id", "n7", "--data", "/var/lib/dledger"])
    assert container.wait() == 1
    assert re.fullmatch(r"dledger: no node 'n7' in this cluster file; it has n0\n", container.log), container.log
