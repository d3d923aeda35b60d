"""What runs beside a node, and never costs it anything: the web console that it starts; and its port of metrics, without which it does
not run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from broker.process.kernel_limits import NICENESS, OOM_SCORE_ADJ
from dledger_cli.local.ports import free_ports
from dledger_wire.errors import AddressInUseError
from tests.cluster.harness import Cluster
from tests.waiting import wait_until


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.listen()
        yield


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=10) as found:
        return bool(found.status == 200)
    return False


def console_of(node: int) -> psutil.Process | None:
    return next(iter(psutil.Process(node).children()), None)


def test_a_node_runs_without_its_console_and_keeps_one_running_when_it_can(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metrics, console = free_ports(2)
    settings = {"metrics": {"address": f"127.0.0.1:{metrics}"}, "console": {"address": f"127.0.0.1:{console}"}}
    cluster = make_cluster(nodes=1, settings=settings)

    with taken(metrics), pytest.raises(AddressInUseError, match=rf"127\.0\.0\.1:{metrics} \(n0\) is taken by pid {os.getpid()} "):
        cluster.start()

    bare = tmp_path / "without-the-extra"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text("import sys\nsys.modules['nicegui'] = None\n")
    with monkeypatch.context() as changed:
        changed.setenv("PYTHONPATH", str(bare))
        cluster.start()
    cluster.cli_ok("topic", "create", "orders")
    assert cluster.produce("orders", [b"without a page"])["acknowledged"] == 1
    assert "the web console needs nicegui: pip install 'nicegui>=3.10,<4'" in cluster.log_text("n0")
    assert console_of(cluster.processes["n0"].pid) is None
    assert cluster.terminate("n0") == 0

    with taken(console):
        cluster.start()
        tried: set[int] = set()

        def tried_again() -> bool:
            child = console_of(cluster.processes["n0"].pid)
            tried.update(() if child is None else (child.pid,))
            return len(tried) > 1

        wait_until(tried_again, "it is tried again")  # the log tells a line that is the same once in a minute
        assert f"127.0.0.1:{console}: cannot listen: Address already in use" in cluster.log_text("n0").replace("'", "")
        assert cluster.produce("orders", [b"beside a taken port"])["acknowledged"] == 1
    wait_until(lambda: answers(console), "the console answers once its address is free")

    node = psutil.Process(cluster.processes["n0"].pid)
    child = console_of(node.pid)
    assert child is not None
    assert child.nice() == node.nice() + NICENESS
    assert (
        int(Path(f"/proc/{child.pid}/oom_score_adj").read_text())
        == OOM_SCORE_ADJ
        > int(Path(f"/proc/{node.pid}/oom_score_adj").read_text())
    )
    child.suspend()  # it hangs, and cannot see that its node has gone
    cluster.kill("n0")
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the kernel ends it with its node")
