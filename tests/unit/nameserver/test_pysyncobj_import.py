"""PySyncObj as this project uses it: what its import leaves alone, what it unpickles, and the private parts that have to be there."""

from __future__ import annotations

import importlib.metadata
import pickle
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from broker.nameserver import bounded_transport, plain_pickle
from broker.nameserver.bounded_transport import FollowedNode

ROOT = Path(__file__).resolve().parents[3]


def test_the_import_changes_nothing_in_the_process() -> None:
    program = """
import pickle, socket
before = socket.inet_ntop, socket.inet_pton, dict(pickle._Unpickler.dispatch)
import broker.nameserver.pysyncobj_quorum
assert (socket.inet_ntop, socket.inet_pton, dict(pickle._Unpickler.dispatch)) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
    assert socket.inet_ntop(socket.AF_INET6, bytes(15) + b"\x01") == "::1"


def test_every_part_of_pysyncobj_unpickles_plain_data_only() -> None:
    from pysyncobj import journal, serializer, syncobj, tcp_connection

    assert {each.pickle for each in (serializer, syncobj, tcp_connection)} == {plain_pickle}
    assert journal.loads is plain_pickle.loads


def test_plain_data_and_the_nodes_of_a_snapshot_come_back() -> None:
    value = {"type": "append_entries", "entries": [(b"\0\xff", 1, 2)], "nodes": {FollowedNode("127.0.0.1:19876")}, "none": None}
    assert plain_pickle.loads(plain_pickle.dumps(value)) == value


@pytest.mark.parametrize("value", [print, Path("x"), socket.AF_INET, ValueError("x")])
def test_nothing_else_is_unpickled(value: object) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(pickle.UnpicklingError):
            plain_pickle.loads(pickle.dumps(value, protocol))


def test_the_version_is_the_one_whose_private_parts_are_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"pysyncobj=={importlib.metadata.version('pysyncobj')}" in project["dependencies"]
    missing = [name for owner, names in bounded_transport.PRIVATE.items() for name in names if not hasattr(owner, name)]
    assert not missing
