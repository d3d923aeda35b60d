"""Clusters that serve RocketMQ's clients, and requests of such a client, one connection each."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.rocketmq import remoting_listens
from broker.remoting.command import RESPONSE, Command, decode, encode, frame_size
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_S


class RocketmqCluster(Cluster):
    """Its nodes and name servers serve RocketMQ's clients, too."""

    def __init__(self, data: Path, **options: Any) -> None:
        super().__init__(data, **options)
        content = yaml.safe_load(self.local.file.read_text(encoding="utf-8"))
        named = [server for server in content["name_servers"] if isinstance(server, dict)]
        served = [*(node for group in content["groups"] for node in group["nodes"]), *named]
        for process, port in zip(served, free_ports(len(served)), strict=True):
            process["rocketmq"] = f"127.0.0.1:{port}"
        self.local.file.write_text(yaml.safe_dump(content), encoding="utf-8")
        self.local = LocalCluster(ClusterConfig.load(str(self.local.file)), data)

    @property
    def name_servers(self) -> list[str]:
        return list(self.status_json()["rocketmq"]["name_servers"])

    def remoting(self, node_id: str) -> str:
        """Where a node or a name server serves RocketMQ's clients."""
        return remoting_listens(self.config, node_id)[0]


class Client:
    """One connection that stays, as of a client that is asked itself."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._connection = _connected(address, tls)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        self._connection.sendall(encode(Command(code, fields, body)))
        return self.read()

    def read(self) -> Command:
        """The next request or answer."""
        return decode(_frame(self._connection))

    def answer(self, request: Command, code: int) -> None:
        self._connection.sendall(encode(Command(code, opaque=request.opaque, flag=RESPONSE)))

    def close(self) -> None:
        self._connection.close()


def _connected(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=LIMIT_S)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)


def ask(address: str, code: int, fields: Mapping[str, str], body: bytes = b"", *, tls: ssl.SSLContext | None = None) -> Command:
    """The answer to one request."""
    with _connected(address, tls) as connection:
        connection.sendall(encode(Command(code, fields, body, opaque=7)))
        answer = decode(_frame(connection))
    assert answer.is_response
    assert answer.opaque == 7
    return answer


def _frame(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < 8 or len(data) < frame_size(data[:8]):
        part = connection.recv(1 << 20)
        assert part, "the connection was closed before an answer came"
        data += part
    return data
