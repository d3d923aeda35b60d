"""How the peers' benchmark speaks with its client processes, here a script in place of one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import worker
from benchmarks.peers.measure import WorkerError, run_worker

FOLDER = Path(worker.__file__).parent
LAZY = {"numpy"}  # imported by the one method that needs it, which is dledger's only


class Servers:
    """Servers whose processor seconds double each time they are asked."""

    bootstrap = "127.0.0.1:1"

    def __init__(self) -> None:
        self.asked, self.events = 1.0, list[str]()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def cpu_s(self) -> float:
        self.asked *= 2
        return self.asked

    def kill_leader(self, named: str) -> tuple[str, float]:
        self.events.append(f"kill {named}")
        return "n2", 7.0

    def start_again(self, node: str) -> None:
        self.events.append(f"start {node}")


def run(script: str, folder: Path, servers: Servers) -> dict[str, Any]:
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\nimport json, sys\n{script}\n")
    file.chmod(0o700)
    return run_worker(file, servers, {"work": "produce"})


def test_the_servers_processors_are_read_at_the_marks(tmp_path: Path) -> None:
    script = """for line in ('{"event": "begin"}', '{"event": "measured"}', '{"event": "end", "took_s": 2.0}'): print(line)"""
    assert run(script, tmp_path, Servers()) == {"took_s": 2.0, "servers_cpu_s": 2.0}


def test_the_leader_is_killed_when_the_client_names_it_and_started_again_at_the_end(tmp_path: Path) -> None:
    servers = Servers()
    script = """print('{"event": "kill", "leader": "n2"}', flush=True)
killed = json.loads(sys.stdin.readline())["killed_at"]
print(json.dumps({"event": "end", "took_s": 1.0, "killed": killed}))"""
    assert run(script, tmp_path, servers) == {"took_s": 1.0, "killed": 7.0, "servers_cpu_s": 0.0}
    assert servers.events == ["kill n2", "start n2"]


@pytest.mark.parametrize("script", ["""sys.exit("the last words")""", """print("the last words", file=sys.stderr)"""])
def test_a_client_that_ends_without_a_result_is_an_error_with_its_last_words(script: str, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"^produce: the last words$"):
        run(script, tmp_path, Servers())


@pytest.mark.parametrize(
    ("module", "more"), [("../bodies", LAZY), ("load", set()), ("worker", set()), ("client_kafka", {"confluent_kafka"})]
)
def test_what_clients_of_others_import_is_in_their_environment(module: str, more: set[str]) -> None:
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    outside = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    own = {"benchmarks.bodies", "benchmarks.peers.load"}
    assert {name if name in own else name.partition(".")[0] for name in outside} <= own | more
