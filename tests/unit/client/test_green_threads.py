"""Processes whose threads gevent or eventlet has replaced: the first client says so, where it would wait for ever."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from dledger_client.runtime.loop_thread import check_threads
from tests.cluster.harness import ROOT
from tests.waiting import LIMIT_S

needs_gevent = pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed here")
PROGRAM = """
import sys
from gevent import monkey
monkey.patch_all(**eval(sys.argv[1]))
from dledger_client import Admin, Producer, PullConsumer, PushConsumer, TransactionProducer
for make in (
    lambda: Producer("127.0.0.1:1"),
    lambda: PullConsumer("127.0.0.1:1"),
    lambda: PushConsumer("127.0.0.1:1", "g", print),
    lambda: TransactionProducer("127.0.0.1:1", "g", print),
    lambda: Admin("127.0.0.1:1"),
):
    try:
        made = make()
        print("made")
        made.close()
    except RuntimeError as error:
        print(error)
"""
ADVICE = "patch with monkey.patch_all(thread=False, queue=False, select=False), or run workers with threads"


def lines(options: str) -> list[str]:
    program = [sys.executable, "-c", PROGRAM, options]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_gevent
@pytest.mark.parametrize(("options", "replaced"), [("{}", "threading, queue, select"), ("{'thread': False}", "queue, select")])
def test_every_client_is_refused_in_a_process_that_gevent_patched(options: str, replaced: str) -> None:
    found = lines(options)
    assert len(found) == 5
    assert all(line.startswith(f"gevent has replaced {replaced} in this process;") and ADVICE in line for line in found), found


@needs_gevent
def test_clients_are_made_in_a_process_that_is_patched_as_the_error_says() -> None:
    assert lines("{'thread': False, 'queue': False, 'select': False}") == ["made"] * 5


def test_a_process_that_eventlet_patched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patched: set[str] = set()
    monkeypatch.setitem(sys.modules, "eventlet.patcher", SimpleNamespace(is_monkey_patched=patched.__contains__))
    check_threads()
    patched.add("thread")
    with pytest.raises(RuntimeError, match=r"eventlet has replaced threading .* leave out eventlet.monkey_patch"):
        check_threads()
