"""Our checker of reads and sends against porcupine, a linearizability checker of others: the same verdict on every history."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import ViolationKind as K
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.history.writer import HistoryWriter
from tests import needs
from tests.cluster.harness import Cluster
from tests.drill.recorded import Clients
from tests.unit.drill.checkers.operations import MS, read, send, stored
from tests.unit.drill.checkers.simulated import simulate

pytestmark = pytest.mark.cluster

History = list[Operation]
Run = Callable[[Path], "subprocess.CompletedProcess[str]"]
SOURCE = Path(__file__).parent / "porcupine"
SEEDS = range(150)
OF_A_LOG = {K.LOST, K.DOUBLED, K.CHANGED, K.REORDERED, K.STALE_READ, K.TRANSACTION}


@pytest.fixture(scope="module")
def porcupine(module_folder: Path) -> Path:
    """The program, built from its source and the module of porcupine."""
    go = needs.program("go")
    program = module_folder / "porcupine"
    built = subprocess.run([go, "build", "-o", program, "."], cwd=SOURCE, capture_output=True, text=True, timeout=500, check=False)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture
def judge(porcupine: Path, tmp_path: Path) -> Callable[[list[History]], list[bool]]:
    """Whether each history is linearizable, as porcupine sees it."""

    def verdicts(histories: list[History]) -> list[bool]:
        files = [write(tmp_path / f"{number}.jsonl", history) for number, history in enumerate(histories)]
        done = subprocess.run([porcupine, *files], capture_output=True, text=True, timeout=500, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == len(histories), done.stderr
        assert not any(line["undecided"] for line in lines)
        assert done.returncode == (1 if any(line["illegal"] for line in lines) else 0)
        return [not line["illegal"] for line in lines]

    return verdicts


def write(file: Path, history: History) -> Path:
    with HistoryWriter(file) as writer:
        for operation in history:
            writer.write(operation)
    return file


def is_linearizable(history: History) -> bool:
    """Our verdict on the same operations."""
    ordered = sorted(history, key=lambda operation: operation.invoked_ns)
    return not OF_A_LOG & {violation.kind for violation in check_all(ordered).violations}


def log_of(history: History) -> History:
    """What a log is judged by: linearizable reads, sends and the audit.

    Keys are a promise of their own; so is that what services append later, delayed messages and transactions, is appended at all.
    """
    kept = [each for each in history if each.kind in WANTED and each.data["topic"] == "t" and each.data.get("mode") != "follower"]
    kept = [replace(each, outcome=Outcome.UNKNOWN) if each.kind in BY_SERVICES and each.outcome is Outcome.OK else each for each in kept]
    return [replace(each, data=without_keys(each.data)) for each in kept]


BY_SERVICES = (OperationKind.DELAYED, OperationKind.TRANSACTION)
WANTED = (OperationKind.SEND, *BY_SERVICES, OperationKind.READ, OperationKind.STORED)


def without_keys(data: dict[str, Any]) -> dict[str, Any]:
    return data | ({"key": None} if "key" in data else {}) | ({"keys": [None] * len(data["keys"])} if "keys" in data else {})


def disturb(history: History, random: Random) -> History:
    """One change to one operation, which a log may forgive."""
    history = list(history)
    number = random.randrange(len(history))
    operation = history[number]
    data = dict(operation.data)
    match operation.kind, random.randrange(3):
        case OperationKind.SEND, 0 if operation.outcome is Outcome.OK:
            data["offset"] += random.choice((-1, 1))
        case OperationKind.SEND, 1:
            operation = replace(operation, outcome=random.choice((Outcome.FAILED, Outcome.UNKNOWN)))
        case OperationKind.READ, 0 if data["values"]:
            data["values"] = data["values"][: random.randrange(len(data["values"]))]
        case OperationKind.READ, 1 if data["values"]:
            data["values"] = random.sample(data["values"], len(data["values"]))
        case OperationKind.STORED, 0 if data["values"]:
            at = random.randrange(len(data["values"]))
            data["values"] = [*data["values"][:at], *data["values"][at + 1 :]]
        case OperationKind.STORED, 1 if data["values"]:
            at = random.randrange(len(data["values"]))
            data["values"] = [*data["values"][:at], random.choice(data["values"]), *data["values"][at + 1 :]]
        case _:
            shift = random.randrange(-50 * MS, 50 * MS)
            operation = replace(
                operation, invoked_ns=operation.invoked_ns + shift, returned_ns=(operation.returned_ns or operation.invoked_ns) + shift
            )
    data |= {"keys": [None] * len(data["values"])} if "keys" in data else {}
    history[number] = replace(operation, data=data)
    return history


def test_both_find_histories_of_a_log_good(judge: Callable[[list[History]], list[bool]]) -> None:
    histories = [log_of(simulate(seed)) for seed in SEEDS]
    assert all(judge(histories))
    assert all(map(is_linearizable, histories))


def test_both_agree_on_histories_with_one_change(judge: Callable[[list[History]], list[bool]]) -> None:
    histories = [disturb(log_of(simulate(seed, 100)), Random(seed)) for seed in SEEDS]
    theirs, ours = judge(histories), [is_linearizable(history) for history in histories]
    assert [seed for seed in SEEDS if theirs[seed] != ours[seed]] == []
    # The changes are such that both verdicts are frequent.
    assert len(SEEDS) // 4 < sum(ours) < len(SEEDS) * 3 // 4


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([send("p/1", 0, 1, 0), read(["p/1"], 2, 3)], True),
        ([send("p/1", 0, 1, 0), read([], 2, 3)], False),
        ([send("p/1", 0, 9, 0), read([], 2, 3), read(["p/1"], 4, 5)], True),
        ([send("p/1", 0, 9, 0), read(["p/1"], 2, 3), read([], 4, 5)], False),
        ([send("p/1", 0, None, outcome="unknown"), read(["p/1"], 2, 3), stored(["p/1"])], True),
        ([send("p/1", 0, None, outcome="unknown"), read(["p/1"], 2, 3), read([], 4, 5), stored(["p/1"])], False),
        ([send("p/1", 0, 1, 0), send("p/2", 2, 3, 1), stored(["p/1"])], False),
        ([send("p/1", 0, 1, 1), send("p/2", 2, 3, 0), stored(["p/2", "p/1"])], False),
        ([send("p/1", 0, 9, 1), send("p/2", 2, 3, 0), stored(["p/2", "p/1"])], True),
        ([send("p/1", 0, 1, 0, idempotent=False), stored(["p/1", "p/1"])], True),
        ([send("p/1", 0, 1, 0), stored(["p/1", "p/1"])], False),
        ([read(["p/1"], 0, 1), send("p/1", 2, 3, 0)], False),
    ],
)
def test_both_agree_on_small_histories(judge: Callable[[list[History]], list[bool]], history: History, expected: bool) -> None:
    assert judge([history]) == [expected]
    assert is_linearizable(history) is expected


def test_both_find_the_history_of_a_real_cluster_good(judge: Callable[[list[History]], list[bool]], tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start()
        cluster.cli_ok("topic", "create", "t", "--queues", "1")
        with Clients(cluster.bootstrap) as clients:
            clients.produce_without_waiting("quick", 0.004)
            for number in range(3):
                clients.produce(f"producer-{number}", 0.002)
                clients.read(f"reader-{number}", 0.01, replica=f"n{number}")
            for _ in range(3):
                clients.go_on(200)
                leader = cluster.leader()
                cluster.kill(leader)
                clients.go_on(50)
                cluster.start(leader)
        history = clients.history()
    assert sum(operation.kind is OperationKind.READ for operation in history) > 50
    assert judge([history]) == [True]
    assert is_linearizable(history)


BAD = [send("p/1", 0, 1, 0), read([], 2, 3)]


@pytest.fixture
def run(porcupine: Path) -> Run:
    return lambda path: subprocess.run([porcupine, path], capture_output=True, text=True, timeout=60, check=False)


def test_a_compressed_history_is_read(run: Run, tmp_path: Path) -> None:
    done = run(write(tmp_path / "history.jsonl.gz", BAD))
    assert done.returncode == 1
    assert json.loads(done.stdout)["illegal"] == [{"topic": "t", "group": "g0", "queue": 0}]


def test_the_files_of_a_folder_are_one_history_and_a_last_line_may_be_cut_off(run: Run, tmp_path: Path) -> None:
    for name, operation in zip(("one.jsonl", "two.jsonl.gz"), BAD, strict=True):
        write(tmp_path / name, [operation])
    with (tmp_path / "one.jsonl").open("ab") as file:
        file.write(b'{"process":"p","kind":"se')
    (tmp_path / "three.jsonl.gz").touch()
    assert run(tmp_path).returncode == 1


def test_a_history_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        done = run(place)
        assert done.returncode == 2
        assert str(place) in done.stderr
