"""What a command imports: a help page neither clients nor servers, a look at a cluster no client that sends or reads messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[3]
NEVER = ("pyarrow", "pandas", "aiohttp", "grpc", "rich", "nicegui", "fsspec", "opentelemetry", "pyspark", "py4j", "psutil")
PROGRAM = """
import sys
from dledger_cli.__main__ import main
try:
    main()
finally:
    print("\\n".join(sys.modules))
"""


def loaded(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout.splitlines()


def found(modules: list[str], *names: str) -> list[str]:
    return [module for module in modules if module in names or module.startswith(tuple(f"{name}." for name in names))]


def test_a_help_page_imports_what_it_shows() -> None:
    clients_and_servers = ("google", "numpy", "uvloop", "dledger", "broker.config", "dledger_client.admin", "dledger_client.cluster")
    modules = loaded("--help")
    assert "dledger_cli.command_table" in modules
    assert found(modules, *NEVER, *clients_and_servers, "asyncio", "pydantic", "yaml", "dledger_cli.commands") == []
    assert found(loaded("topic", "create", "--help"), *NEVER, *clients_and_servers, "dledger_client.aio") == []


def test_a_look_at_a_cluster_imports_no_other_client(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: shop\ngroups: [{name: g0, nodes: [{id: n0, address: 127.0.0.1:1}]}]\n", encoding="utf-8")
    modules = loaded("status", "--config", str(file))
    assert "dledger_client.admin.ask_nodes" in modules
    others = ("dledger_client.aio", "dledger_client.producer", "dledger_client.consumer", "dledger_client.fetch", "dledger_client.metrics")
    assert found(modules, *NEVER, *others, "numpy", "pydantic") == []
