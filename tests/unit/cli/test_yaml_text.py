"""Cluster files changed as text: what the user wrote stays, whatever its style."""

from __future__ import annotations

import pytest
import yaml

from dledger_cli.local.cluster_edit import with_groups, without_group
from dledger_cli.local.yaml_text import with_items, with_value, without_item
from dledger_wire.errors import ConfigError
from tests.cluster.harness import ROOT

SHIPPED = (ROOT / "cluster-configs" / "local-3.yaml").read_text(encoding="utf-8")
G1 = {"name": "g1", "nodes": [{"id": "m0", "address": "127.0.0.1:10951"}]}
G1_LINES = "  - name: g1\n    nodes:\n    - {id: m0, address: '127.0.0.1:10951'}\n"


def test_a_group_is_added_and_taken_out_and_all_other_lines_stay() -> None:
    added = with_groups(SHIPPED, [G1])
    before, after = SHIPPED.split("store:")
    assert added == f"{before}{G1_LINES}store:{after}"
    assert without_group(added, "g1") == SHIPPED


ITEMS = {
    "block": "a: 1 # one\nlist:\n  # the first\n  - name: x # so\n    of: [1, 2]   # and so\n\n# behind\nb: 'q'\n",
    "not indented": "list:\n- x # a comment\n- y\nb: 1\n",
    "at the end, without a line end": "list:\n    - {name: x}",
    "comments at the end": "list:\n  - x\n  # the end\n",
    "flow": "list: [x, {y: 1}] # both\nb: 1\n",
    "flow over lines": "list: [\n  x,\n  y, # why\n]\nb: 1\n",
    "empty": "list: []  # none\nb: 1\n",
    "folded text": "list:\n  - |\n    some\n    lines\nb: 1\n",
    "windows": "list:\r\n  - x\r\nb: 1\r\n",
    "null": "list:\n  - x:\n  - y:\nb: 1\n",
}


@pytest.mark.parametrize("text", ITEMS.values(), ids=ITEMS)
def test_items_come_and_go_in_every_style(text: str) -> None:
    data = yaml.safe_load(text)
    added = with_items(text, "list", ["new", {"id": "n"}])
    assert yaml.safe_load(added) == data | {"list": [*data["list"], "new", {"id": "n"}]}
    again = without_item(without_item(added, "list", len(data["list"])), "list", len(data["list"]))
    assert yaml.safe_load(again) == data
    for comment in [line.partition("#")[2] for line in text.splitlines() if "#" in line]:
        assert comment in again
    if len(data["list"]) > 1:
        assert yaml.safe_load(without_item(text, "list", 0)) == data | {"list": data["list"][1:]}


VALUES = {
    "s:\n  # why\n  k: v # so\nb: 1\n": "s:\n  # why\n  folder: /a b\n  k: v # so\nb: 1\n",
    "s: {k: v}\n": "s: {folder: /a b, k: v}\n",
    "s: {}\n": "s: {folder: /a b}\n",
    "s:\n  folder: 'x' # old\n  k: v\n": "s:\n  folder: /a b # old\n  k: v\n",
    "s: {folder: x, k: v}\n": "s: {folder: /a b, k: v}\n",
}


@pytest.mark.parametrize(("text", "expected"), VALUES.items(), ids=VALUES)
def test_a_value_is_set_where_it_stands(text: str, expected: str) -> None:
    assert with_value(text, "s", "folder", "/a b") == expected


def test_a_text_that_would_read_as_something_else_is_refused() -> None:
    text = "groups: &all\n  - {name: g0}\nothers: *all\n"
    with pytest.raises(ConfigError, match="edit it by hand"):
        with_groups(text, [G1])
