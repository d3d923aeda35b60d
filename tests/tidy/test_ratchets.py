"""Limits that only get tighter: lengths and parameters of functions, sleeps and mocks in tests, names of tasks.

The lists below are what was over a limit when it was set.  An entry that is no longer needed has to go, and none is added: split the
function instead.  Complexity, branches and statements are limited in ``[tool.ruff.lint]``.
"""

from __future__ import annotations

from tests.tidy.source import PACKAGES, sources

MAX_LINES = 50  # without the docstring
MAX_PARAMETERS = 7
# Their keyword-only parameters are the settings of the public API, or the options of a command.
PUBLIC = (
    "dledger_client/aio/",
    "dledger_client/sync/",
    "dledger_cli/commands/",
    "dledger_drill/bench/commands.py",
    "dledger_drill/command/command.py",
    "dledger_offline/backup/cluster.py",
    "dledger_offline/backup/restore.py",
)

LONG = {
    "tests/cluster/test_everything_together.py:test_nothing_is_lost_doubled_or_out_of_order_whoever_dies": 70,
    "tests/unit/wire/test_golden_frames.py:test_what_our_clients_make_and_the_leader_stamps": 69,
}
MANY_PARAMETERS = {
    "dledger/core/raft.py:Raft.__init__": 8,
    "dledger/log/scan.py:SegmentWalk.__init__": 8,
    "dledger_client/fetch/records.py:Chunk.__init__": 10,
    "dledger_client/message.py:Message.__init__": 9,
    "dledger_wire/batches/batch.py:encode_batch": 9,
    "dledger_wire/batches/batch.py:encode_batch_parts": 9,
    "dledger_wire/frames/frames.py:stamp_frames": 8,
    "store/queues/queue_reader.py:QueueReader.read": 8,
    "store/store.py:MessageStore.read": 8,
    "tests/unit/core/harness.py:Cluster.__init__": 9,
}


def compare(sizes: dict[str, int], limit: int, frozen: dict[str, int], what: str) -> None:
    wrong = [f"{where}: no longer over {limit} {what}: remove it from the list" for where in frozen if sizes.get(where, 0) <= limit]
    for where, size in sizes.items():
        allowed = max(limit, frozen.get(where, 0))
        wrong += [f"{where}: {size} {what}; expected at most {allowed}"] if size > allowed else []
    assert not wrong, "\n".join(wrong)


def test_functions_fit_a_screen() -> None:
    sizes = {f"{source.name}:{function}": size for source in sources() for function, size in source.lines.items()}
    compare(sizes, MAX_LINES, LONG, "lines")


def test_functions_take_few_parameters() -> None:
    files = [source for source in sources() if not source.name.startswith(PUBLIC)]
    sizes = {f"{source.name}:{function}": size for source in files for function, size in source.parameters.items()}
    compare(sizes, MAX_PARAMETERS, MANY_PARAMETERS, "parameters")


def test_unit_and_simulation_tests_neither_sleep_nor_mock() -> None:
    """They wait for events or run in virtual time, and put in real parts or simulated ones."""
    found: list[str] = []
    for source in sources():
        if source.name.startswith(("tests/unit/", "tests/sim/", "tests/contract/")):
            found += [f"{source.name}:{line}: {called}" for line, called, _ in source.calls if called in ("time.sleep", "sleep")]
            found += [f"{source.name}:{line}: {module}" for line, module in source.imports if "mock" in module.lower()]
    assert not found, "\n".join(found)


def test_every_task_has_a_name() -> None:
    """It stands in the log line of an error.  (That each task is kept by its owner is ruff's RUF006.)"""
    found = [
        f"{source.name}:{line}"
        for source in sources()
        if source.name.startswith(PACKAGES)
        for line, called, keywords in source.calls
        if called.endswith("create_task") and "name" not in keywords
    ]
    assert not found, "create_task without a name:\n" + "\n".join(found)
