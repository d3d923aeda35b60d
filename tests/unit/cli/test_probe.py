"""``dledger-probe`` against real metrics ports, with and without TLS; and what its start costs."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.metrics.health import Check
from broker.metrics.http_server import HttpServer
from dledger_cli.local.ports import free_ports
from dledger_cli.probe import ADDRESS_VARIABLE, main
from dledger_wire.security.tls import TlsContexts, TlsSettings
from tests.contract.secured import NODE, certificate, folder

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Told:
    """A process that lives and is not ready."""

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        return b"", "text/plain"

    async def authorize(self, peer: str, name: str, password: str) -> None:
        """Everybody may."""

    def alive(self) -> Sequence[Check]:
        return [Check("loop")]

    async def ready(self) -> Sequence[Check]:
        return [Check("leader", "no leader of replica group g0 is known here")]


def contexts() -> TlsContexts:
    path = certificate(NODE, "probed")
    settings = TlsSettings(str(folder() / "ca.crt"), f"{path}.crt", f"{path}.key", client_auth="none")
    return TlsContexts(settings, alpn=("http/1.1",))


def probed(path: str, *, tls: bool = False, scheme: str = "") -> int:
    """The exit status of a probe of a port that serves ``Told``."""

    async def scenario() -> int:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        server = HttpServer(address, Told(), contexts() if tls else None)
        await server.start()
        try:
            return await asyncio.to_thread(status_of, [f"{scheme}{address}{path}"])
        finally:
            await server.stop()

    return asyncio.run(scenario())


def status_of(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_process_that_lives_and_is_not_ready(tls: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert probed("", tls=tls) == 0
        assert probed("/livez", tls=tls) == 0
        assert capsys.readouterr() == ("", "")
        assert probed("/readyz", tls=tls) == 1
    assert "503: [-]leader failed: no leader of replica group g0 is known here" in capsys.readouterr().err
    assert not caplog.records, "a probe every few seconds fills no log"


def test_a_scheme_that_is_given_is_kept_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert probed("/livez", tls=True, scheme="https://") == 0
    assert probed("/livez", tls=True, scheme="http://") == 1
    assert probed("/livez", scheme="https://") == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_where_it_asks_without_an_argument(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)[0]
    monkeypatch.setenv(ADDRESS_VARIABLE, f"127.0.0.1:{port}/readyz")
    assert status_of([]) == 1
    assert capsys.readouterr().err.startswith(f"127.0.0.1:{port}/readyz: ")


@pytest.mark.parametrize("target", ["n0", "n0:port", ":9464", "ftp://127.0.0.1:9464/", "127.0.0.1/livez"])
def test_what_is_no_address(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([target]) == 1
    assert capsys.readouterr().err == f"{target}: expected HOST:PORT, HOST:PORT/PATH or https://HOST:PORT/PATH\n"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: dledger-probe")
    assert status_of(["--tls"]) == 2
    assert status_of(["a:1", "b:2"]) == 2


def test_it_imports_nothing_of_weight() -> None:
    """A health check runs every few seconds beside each node: a command of typer costs ten times as much."""
    program = "import sys, dledger_cli.probe; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert imported - set(sys.stdlib_module_names) == {"__main__", "dledger_cli"}
    assert not imported & {"argparse", "asyncio", "http", "logging", "ssl", "typing", "urllib"}, "TLS is imported where a port speaks it"
