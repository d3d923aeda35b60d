"""Three nodes of RocketMQ in either of its replicated modes, with a name server, and three of dledger that speak its protocol.

Owns the settings files.  All of them store what they acknowledge on two of three nodes; RocketMQ's defaults sync none of it.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.peers.fetched import UnavailableError, jars, java
from benchmarks.peers.servers import START_LIMIT_S, Processes
from benchmarks.peers.servers_dledger import ROOM
from dledger_cli.local.ports import free_ports
from dledger_cli.local.private_cluster import PrivateCluster

VERSION = "5.5.0"
CLUSTER = "measured"
BROKER = "broker"
NODES = ("n0", "n1", "n2")
HEAP = ("-Xms512m", "-Xmx512m")
PORTS_APART = 12  # a broker takes ports beside its own: below it the one of old clients, above it the one of its replicas
PORT_OFFSET = 1000
MAPPED = {"mappedFileSizeCommitLog": 1 << 28}


def fetch() -> list[Path]:
    artifacts = [f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("broker", "namesrv", "controller", "tools")]
    return jars(f"rocketmq-{VERSION}", *artifacts)


def compiled(program: Path, libraries: Sequence[Path], folder: Path) -> list[str]:
    """The command that runs a program in Java, compiled into the folder.  UnavailableError without a compiler."""
    compiler = java()[0].resolve().with_name("javac")
    if not compiler.exists():
        raise UnavailableError(f"javac is missing beside {java()[0]} (Debian: apt-get install openjdk-17-jdk-headless)")
    path = ":".join(map(str, [folder, *libraries]))
    subprocess.run([str(compiler), "-nowarn", "-cp", path, "-d", str(folder), str(program)], check=True)
    return [str(java()[0]), "-Xmx512m", "-cp", path, program.stem]


def create_topic(name_servers: str, broker: str, topic: str, queues: str) -> None:
    """A broker may have started and not be ready yet: it is asked for a while."""
    arguments = ["updateTopic", "-n", name_servers, "-b", broker, "-t", topic, "-r", queues, "-w", queues]
    until_s = time.monotonic() + START_LIMIT_S
    while "success" not in (said := admin(arguments)):
        if time.monotonic() > until_s:
            raise RuntimeError(f"topic {topic} was not created at {broker}: {said.strip()[-300:]}")


class Measured(Protocol):
    """A running system of three nodes."""

    name_servers: str

    def start(self) -> None: ...

    def kill(self, address: str) -> None:
        """kill -9 the node that serves clients at ``address``."""

    def end(self) -> None: ...


class Dledger:
    """dledger with default settings, so synced to disk."""

    def __init__(self, folder: Path) -> None:
        self._cluster = PrivateCluster(folder, settings=ROOM | {"rocketmq": {"portOffset": PORT_OFFSET}})
        self.own = {node.id: node.address for _, node in self._cluster.config.all_nodes()}
        self.addresses = {node: _moved(address, PORT_OFFSET) for node, address in self.own.items()}
        self.name_servers = ";".join(self.addresses.values())

    def start(self) -> None:
        self._cluster.start()

    def kill(self, address: str) -> None:
        self._cluster.kill(next(name for name, own in self.addresses.items() if own == address))

    def end(self) -> None:
        self._cluster.kill_all()


def _moved(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + by}"


class Rocketmq:
    """A name server and three brokers; ``mode``: ``dledger`` or ``controller``, which the name server then serves as well."""

    def __init__(self, folder: Path, mode: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names, controller, *others = free_ports(2 + len(NODES))
        base = _spaced(PORTS_APART * len(NODES))
        ports = {node: base + PORTS_APART * number + 3 for number, node in enumerate(NODES)}
        replicas = dict(zip(NODES, others, strict=True))
        files = {"names": {"listenPort": names} | (_controller(folder, controller) if mode == "controller" else {})}
        for number, node in enumerate(NODES):
            own = _dledger_broker(number, replicas) if mode == "dledger" else _controlled_broker(controller)
            files[node] = broker_settings(folder / node, f"127.0.0.1:{names}", ports[node]) | {"brokerId": -1} | own
        program = [str(java()[0]), *HEAP, "-cp", ":".join(map(str, fetch()))]
        commands = {}
        for name, settings in files.items():
            file = folder / f"{name}.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
            start = "org.apache.rocketmq.namesrv.NamesrvStartup" if name == "names" else "org.apache.rocketmq.broker.BrokerStartup"
            home = [f"-Duser.home={folder / name}", f"-Drocketmq.home.dir={folder / name}"]
            commands[name] = [program[0], *home, *program[1:], start, "-c", str(file)]
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in ports.items()}
        self.name_servers = f"127.0.0.1:{names}"
        self._processes = Processes(commands, {"names": self.name_servers, **self.addresses}, folder, {})

    def start(self) -> None:
        self._processes.__enter__()

    def kill(self, address: str) -> None:
        self._processes.kill_leader(next(name for name, own in self.addresses.items() if own == address))

    def end(self) -> None:
        self._processes.__exit__(None, None, None)


def broker_settings(folder: Path, name_server: str, port: int) -> dict[str, object]:
    return MAPPED | {
        "brokerClusterName": CLUSTER,
        "brokerName": BROKER,
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": name_server,
        "listenPort": port,
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        # The warning level of a disk of which much is used, but has room.
        "diskSpaceWarningLevelRatio": 99,
        "diskMaxUsedSpaceRatio": 95,
    }


def _dledger_broker(number: int, replicas: dict[str, int]) -> dict[str, object]:
    peers = ";".join(f"{node}-127.0.0.1:{port}" for node, port in replicas.items())
    return {"enableDLegerCommitLog": "true", "dLegerGroup": BROKER, "dLegerPeers": peers, "dLegerSelfId": NODES[number]}


def _controlled_broker(controller: int) -> dict[str, object]:
    """Two of three must have a message, as in the other modes."""
    replicas = {"totalReplicas": 3, "inSyncReplicas": 2, "minInSyncReplicas": 2, "allAckInSyncStateSet": "false"}
    return replicas | {
        "enableControllerMode": "true",
        "controllerAddr": f"127.0.0.1:{controller}",
        "brokerRole": "SLAVE",
        "haListenPort": free_ports(1)[0],
    }


def _controller(folder: Path, port: int) -> dict[str, object]:
    return {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": folder / "controller",
        "mappedFileSize": 1 << 26,
    }


def _spaced(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_ports(1)[0]
        if first + count < 65_536 and not any(_is_taken(port) for port in range(first, first + count)):
            return first


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def admin(arguments: list[str]) -> str:
    """What a command of RocketMQ's mqadmin printed, errors behind the rest."""
    command = [str(java()[0]), "-cp", ":".join(map(str, fetch())), "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_LIMIT_S)
    return done.stdout + done.stderr


def leader(name_servers: str) -> str:
    """The address that clients send to: of the broker with id 0."""
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        for line in admin(["clusterList", "-n", name_servers]).splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == "0":
                return words[3]
        time.sleep(1)
    raise RuntimeError(f"no broker with id 0 is known at {name_servers} after {START_LIMIT_S:g} s")
