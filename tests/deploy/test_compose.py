"""The compose file: its services are started as it says, form a cluster, and serve clients inside and outside; what it names exists."""

from __future__ import annotations

import json
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.values import split_address
from broker.main import STOP_GRACE_S
from tests.deploy.composition import COMPOSE, Composition, document, own_services, published, seconds
from tests.deploy.containers import Image
from tests.waiting import wait_until

NODES, NAME_SERVERS = ("n0", "n1", "n2"), ("ns0", "ns1", "ns2")
CLUSTER = ClusterConfig.load(str(COMPOSE.parent / "cluster.yaml"))
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "deploy" / "containers.md"
DLEDGER = str(Path(sys.executable).parent / "dledger")

pytestmark = pytest.mark.xdist_group("image")


@pytest.fixture(scope="module")
def composition(image: Image, module_folder: Path) -> Iterator[Composition]:
    made = Composition(image, module_folder)
    try:
        names = re.search(r"^127\.0\.0\.1 n0 .*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
        assert names, "the guide says which names lead to the published ports"
        with open(made.network.outside, "a", encoding="utf-8") as hosts:
            hosts.write(names[0] + "\n")
        made.up()
        yield made
    finally:
        made.down()


def status(composition: Composition, node: str) -> dict[str, Any]:
    """Of the only group, as a command in the container of ``node`` sees it."""
    told = composition.containers[node].execute(["dledger", "status", "--json"], check=False).stdout
    found: dict[str, Any] = json.loads(told)["groups"][0]
    return found


def test_the_services_become_healthy_and_form_one_cluster(composition: Composition) -> None:
    group = status(composition, "n0")
    assert [node["id"] for node in group["nodes"] if node["reachable"]] == list(NODES)
    told = composition.containers["n1"].execute(["dledger", "nameserver", "status"]).stdout
    assert "all 3 name servers know the whole cluster and agree" in told


def test_clients_outside_reach_it_by_published_ports(composition: Composition) -> None:
    """Names lead to the loopback address there, as the guide says; every address that the cluster tells is a published one."""
    sent = "".join(f"order {number}\n" for number in range(50))
    produced = composition.network.run([DLEDGER, "produce", "orders", "--bootstrap", "127.0.0.1:10912", "--json"], input=sent)
    assert json.loads(produced)["sent"] == 50
    command = [
        DLEDGER,
        "consume",
        "orders",
        "--group",
        "outside",
        "--from",
        "first",
        "--max",
        "50",
        "--bootstrap",
        "127.0.0.1:9878",
        "--json",
    ]
    bodies = [json.loads(line)["body"] for line in composition.network.run(command).splitlines()]
    assert sorted(bodies) == sorted(sent.split("\n")[:-1])
    page = composition.network.run(
        [sys.executable, "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/').read().decode())"]
    )
    assert "dledger" in page


def test_processes_are_nobody_and_write_to_their_volume_only(composition: Composition) -> None:
    for name in (*NODES, *NAME_SERVERS, "console"):
        process = Path(f"/proc/{composition.containers[name].pid}/status").read_text(encoding="utf-8")
        assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", process, re.MULTILINE), name
        assert re.search(r"^CapBnd:\t0+$", process, re.MULTILINE), name
    for name in NODES:
        assert (composition.volume(name) / name / "identity.json").is_file()
        assert {file.stat().st_uid for file in composition.volume(name).rglob("*")} == {10001}
    password = composition.volume("secret") / "name-service.password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert len(password.read_text(encoding="utf-8").strip()) == 44


def test_sigterm_hands_leadership_over_and_ends_in_time(composition: Composition) -> None:
    while (lost := _stop_the_leader(composition)) is None:
        pass  # a busy machine had taken its leadership before the signal came
    assert lost["kind"] == "transfer", lost


def _stop_the_leader(composition: Composition) -> dict[str, Any] | None:
    """Stop the leader, send to the next one, and start it again: how it lost its leadership; None: it had lost it before."""
    leader = wait_until(lambda: _led(composition, "n0"), "a leader")
    other = next(name for name in NODES if name != leader)
    container = composition.containers[leader]
    began_ms = time.time() * 1000
    assert container.stop(seconds(composition.services[leader]["stop_grace_period"])) == 0, container.log
    wait_until(lambda: _led(composition, other, leader), "another leader")
    told = composition.containers[other].execute(["dledger", "leader", "history", "--json"]).stdout
    lost = [change for change in json.loads(told)["changes"] if change["previous"] == leader and change["at_ms"] >= began_ms]
    composition.containers[other].execute(["dledger", "produce", "orders", "--count", "10"])
    composition.start(leader)
    composition.wait_healthy(leader)
    return lost[0] if lost else None


def _led(composition: Composition, node: str, before: str = "") -> str:
    """The leader as ``node`` sees it; empty while there is none, or still the one ``before``."""
    leader = str(status(composition, node)["leader"] or "")
    return leader if leader != before else ""


# What the files say


def test_services_are_those_of_the_cluster_file() -> None:
    services = own_services()
    assert {node.id for _, node in CLUSTER.all_nodes()} == set(NODES)
    assert {server.id for server in CLUSTER.name_server_processes} == set(NAME_SERVERS)
    for name in (*NODES, *NAME_SERVERS):
        command, kind = services[name]["command"], "node" if name in NODES else "nameserver"
        assert command == [kind, "--config", "/etc/dledger/cluster.yaml", "--id", name, "--data", "/var/lib/dledger"]
        assert f"{name}:/var/lib/dledger" in services[name]["volumes"]
        address = CLUSTER.node(name).node.address if name in NODES else CLUSTER.name_server(name).server.address
        host, port = split_address(address)
        assert host == name
        assert published(services[name]) == [("127.0.0.1", port, port)], "the address that clients are told has to be the published one"
        assert seconds(services[name]["stop_grace_period"]) > STOP_GRACE_S


def test_every_service_is_confined_and_bounded() -> None:
    for name, service in document()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("mem_limit") or service.get("profiles") or name == "secret", name
        assert all(address == "127.0.0.1" for address, _, _ in published(service)), name


def test_what_is_mounted_exists() -> None:
    compose = document()
    for each in compose["configs"].values():
        assert (COMPOSE.parent / each["file"]).is_file(), each
    for name, service in compose["services"].items():
        for each in service.get("configs", ()):
            assert each["source"] in compose["configs"], name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (COMPOSE.parent / source).is_dir(), f"{name}: {volume}"


def test_prometheus_and_grafana_look_at_this_cluster() -> None:
    compose = document()
    scraped = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text(encoding="utf-8"))
    assert CLUSTER.metrics.address is not None
    port = split_address(CLUSTER.metrics.address)[1]
    (job,) = scraped["scrape_configs"]
    found = {target["labels"]["node"]: (target["targets"], target["labels"]) for target in job["static_configs"]}
    assert job["job_name"] == "dledger"
    assert set(found) == {*NODES, *NAME_SERVERS}
    for name, (targets, labels) in found.items():
        assert targets == [f"{name}:{port}"]
        assert labels["cluster"] == CLUSTER.cluster
        assert labels["group"] == ("g0" if name in NODES else "name-servers")
    mounted = dict(volume.split(":")[:2][::-1] for volume in compose["services"]["prometheus"]["volumes"])
    for file in scraped["rule_files"]:
        assert (COMPOSE.parent / mounted[str(Path(file).parent)] / Path(file).name).is_file(), file
    boards = yaml.safe_load((COMPOSE.parent / "grafana" / "boards.yaml").read_text(encoding="utf-8"))["providers"][0]["options"]["path"]
    mounted = dict(volume.split(":")[:2][::-1] for volume in compose["services"]["grafana"]["volumes"])
    home = Path(compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == boards
    assert (COMPOSE.parent / mounted[boards] / home.name).is_file()
