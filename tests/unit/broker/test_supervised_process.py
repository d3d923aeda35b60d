"""A process beside a node: it is started again when it ends, ends when the node does, and never takes from the node."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from broker.config.cluster_file import ClusterConfig
from broker.process import supervised_process
from broker.process.allocator import MALLOC_SETTINGS
from broker.process.kernel_limits import NICENESS, OOM_SCORE_ADJ
from broker.process.supervised_process import SupervisedProcess
from dledger_cli.commands import node
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "import os, sys; print('hello\\x1b from', os.getpid(), file=sys.stderr, flush=True); sys.stdin.read()"
LIMIT = 300 << 20
# Hangs, so that it never sees its standard input end.
SECOND = f"""
import os, sys, signal
from broker.process.kernel_limits import take_low_priority
take_low_priority({LIMIT})
try:
    bytearray({LIMIT})
    refused = "no"
except MemoryError:
    refused = "yes"
print(os.getpid(), refused, file=sys.stderr, flush=True)
signal.pause()
"""
PARENT = f"""
import logging, sys, signal
from broker.process.supervised_process import SupervisedProcess
logging.basicConfig(level=logging.INFO, format="%(message)s")
with SupervisedProcess("second", [sys.executable, "-c", {SECOND!r}]):
    signal.pause()
"""


def test_it_is_started_again_and_ends_with_its_context(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("SECRET_OF_THE_NODE", "x")
    monkeypatch.setenv("MALLOC_TOP_PAD_", MALLOC_SETTINGS["MALLOC_TOP_PAD_"])
    caplog.set_level(logging.INFO)
    child = SupervisedProcess("console", [sys.executable, "-c", PROGRAM], without=("SECRET_OF_THE_NODE",))

    def pids() -> list[int]:
        return [int(record.getMessage().rsplit(" ", 1)[1]) for record in caplog.records if "hello" in record.getMessage()]

    with child:
        first = wait_until(pids, "the first one says hello")[0]
        assert "hello\\x1b from" in caplog.text
        given = Path(f"/proc/{first}/environ").read_bytes()
        assert b"SECRET_OF_THE_NODE" not in given
        assert b"MALLOC_TOP_PAD_" not in given
        os.kill(first, signal.SIGKILL)
        second = wait_until(lambda: pids()[1:], "another one says hello")[0]
        ended = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.__dict__["status"] for record in ended] == [-signal.SIGKILL]
    wait_until(lambda: not Path(f"/proc/{second}").exists(), "it ends with its context")


def test_a_command_that_does_not_exist_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_PAUSE_S", 0.01)
    with SupervisedProcess("console", ["/no/such/program"]):
        wait_until(lambda: caplog.text.count("cannot be started") > 1, "it is tried again")


def test_the_pause_is_the_first_one_at_first_and_doubles_up_to_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervised_process, "MAX_PAUSE_S", 0.05)
    monkeypatch.setattr(SupervisedProcess, "_run_once", lambda _self: 1)  # ends at once

    def pauses() -> list[float]:
        return [record.__dict__["again_in_s"] for record in caplog.records if record.__dict__.get("event") == "child_process_ended"]

    with SupervisedProcess("console", []):
        wait_until(lambda: len(pauses()) >= 5, "it ended five times")
    assert pauses()[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means, which are Linux's")
def test_it_gives_way_to_the_node_and_ends_with_a_node_that_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    with parent:
        try:
            assert parent.stderr is not None
            line = parent.stderr.readline().decode().split()
            assert line[0] == "second:"
            child, refused = psutil.Process(int(line[1])), line[2]
            assert refused == "yes"
            assert child.nice() == min(psutil.Process(parent.pid).nice() + NICENESS, 19)  # the kernel's most
            assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == str(OOM_SCORE_ADJ)
            assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (LIMIT, LIMIT)
        finally:
            parent.kill()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the kernel ends it with its parent")


def test_without_the_library_the_node_runs_without_a_console(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    text = "cluster: c\ngroups: [{name: g0, nodes: [{id: n0, address: '127.0.0.1:1'}]}]\nconsole: {address: '127.0.0.1:2'}\n"
    with node._console(ClusterConfig.parse(text, "cluster.yaml"), "cluster.yaml", "n0", "data"):
        (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert told.__dict__["event"] == "child_process_not_started"
    assert told.__dict__["reason"] == "the web console needs nicegui: pip install 'nicegui>=3.10,<4'"
