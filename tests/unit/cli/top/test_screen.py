"""The picture of ``dledger top``: nothing wider or higher than the terminal, what matters most has room, keys choose the order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_cli.top.columns import Column, lines
from dledger_cli.top.keys import keys_in
from dledger_cli.top.model import ConsumerRow, GroupRow, LeaderChange, NodeRow, Rates, View
from dledger_cli.top.screen import Choice, picture, shares

RATES = Rates(1234.0, 5e6, 0.5, 0.0)


def node(number: int, group: str = "g0", **changes: object) -> NodeRow:
    row = NodeRow(group, f"n{number}", True, "follower", 7, number * 10, 40.0 + number, 3.0, 100 << 20, RATES, "")
    return replace(row, **changes)  # type: ignore[arg-type]


def view(count: int = 1, **changes: object) -> View:
    rows = [
        GroupRow(f"g{k}", "n0", 7, 3, 3, 1, True, True, RATES, tuple(node(number, f"g{k}") for number in range(3))) for k in range(count)
    ]
    consumers = tuple(ConsumerRow(f"billing-{k}", 2, ("orders",), k * 5, 12.0, -3.0) for k in range(4))
    told = (LeaderChange(1_800_000_000_000, "g0", "n1", "n0", 7, 610.0, "no heartbeat for 500 ms"),)
    return replace(View(1_800_000_000_000, "shop", "all is well", tuple(rows), consumers, "", told), **changes)  # type: ignore[arg-type]


def drawn(shown: View, width: int = 200, height: int = 40, choice: Choice | None = None, trouble: str = "") -> list[str]:
    return picture(shown, choice or Choice(), width, height, trouble).plain.split("\n")


@pytest.mark.parametrize(("width", "height"), [(200, 40), (80, 24), (60, 12), (20, 3), (1, 1)])
def test_it_fits_the_terminal_with_many_groups(width: int, height: int) -> None:
    text = drawn(view(30), width, height)
    assert len(text) == max(height, 2)
    assert all(len(line) <= width for line in text)


def test_all_there_is_to_see_on_a_wide_terminal() -> None:
    text = "\n".join(drawn(view()))
    for expected in (
        "shop   ",
        "all is well",
        "IN/S",
        "BYTES-OUT/S",
        "4.8 MiB",
        "LOOP-LAG",
        "100.0 MiB",
        "billing-3",
        "n1 -> n0, 0.61 s without a leader",
    ):
        assert expected in text
    assert "no heartbeat for 500 ms" in text
    assert "rows " not in text


def test_connections_that_are_held_up_are_shown_with_what_they_wait_for() -> None:
    held_up = node(0, connection_states={"running": 37, "flow": 3, "blocked": 0}, bottleneck="follower n2")
    text = "\n".join(drawn(view(groups=(replace(view().groups[0], nodes=(held_up, node(1))),))))
    assert "CONNECTIONS" in text
    assert "3/40 flow: follower n2" in text


def test_a_leader_that_did_not_answer_is_told_from_one_that_takes_no_messages() -> None:
    (row,) = view().groups
    refusing = replace(row, healthy=False, takes_messages=False)
    assert "its leader takes no messages" in "\n".join(drawn(view(groups=(refusing,))))
    silent = replace(refusing, nodes=(node(0, reachable=False), node(1), node(2)))
    assert "its leader did not answer in time" in "\n".join(drawn(view(groups=(silent,))))


def test_narrow_terminals_keep_lag_disk_and_the_note() -> None:
    silent = node(2, reachable=False, note="unreachable: connection refused")
    group = replace(view().groups[0], nodes=(node(0), silent))
    text = "\n".join(drawn(view(groups=(group,)), 80, 24))
    assert "BYTES-IN/S" not in text
    for expected in ("LAG", "DISK", "unreachable: connection ", "LAG-CHANGE/S"):
        assert expected in text


def test_what_does_not_fit_is_told_and_can_be_scrolled_to() -> None:
    choice = Choice()
    shown = drawn(view(30), 120, 30, choice)
    assert any("rows 1-" in line and "of 90" in line for line in shown)
    choice.press("down")
    assert any("rows 2-" in line and "of 90" in line for line in drawn(view(30), 120, 30, choice))
    choice.first_node = 1000
    assert any("-90 of 90" in line for line in drawn(view(30), 120, 30, choice))
    assert choice.first_node < 90


def names(shown: list[str], beginning: str) -> list[str]:
    return [line.split()[0] for line in shown if line.startswith(beginning)]


def test_keys_choose_what_comes_first() -> None:
    choice = Choice()
    assert names(drawn(view(), choice=choice), "billing")[0] == "billing-0"
    choice.press("l")
    shown = drawn(view(), choice=choice)
    assert (names(shown, "billing")[0], shown[-1].endswith("(by lag)")) == ("billing-3", True)
    assert [line.split()[1] for line in shown if line.startswith("g0 ") and "follower" in line] == ["n2", "n1", "n0"]
    for key in ("d", "r", "n"):
        choice.press(key)
        assert drawn(view(), choice=choice)
    choice.press("p")
    assert "paused" in drawn(view(), choice=choice)[0]
    choice.press("x")
    assert not choice.quit
    choice.press("q")
    assert choice.quit


def test_troubles_are_on_the_picture() -> None:
    text = "\n".join(drawn(view(consumers_trouble="not of now: g0 has no leader"), trouble="the password is wrong"))
    assert "not of now: the password is wrong" in text
    assert "LAG-CHANGE/S  TOPICS   not of now: g0 has no leader" in text


def test_names_from_outside_are_inert() -> None:
    hostile = ConsumerRow("a\x1b[2Jb\n", 1, ("[red]x[/]",), 0, None, None)
    text = "\n".join(drawn(view(consumers=(hostile,))))
    assert "\x1b" not in text
    assert "[red]x[/]" in text


def test_every_section_gets_some_rows_before_any_gets_more() -> None:
    counts = {"groups": 30, "nodes": 90, "consumers": 50, "changes": 20}
    assert shares(counts, 7) == {"groups": 1, "nodes": 3, "consumers": 2, "changes": 1}
    assert sum(shares(counts, 40).values()) == 40
    assert shares({**counts, "nodes": 3}, 200)["nodes"] == 3


def test_columns_give_way_by_rank_and_do_not_move() -> None:
    columns = [Column("A", 3, right=False), Column("B", 5, rank=1), Column("C", 5, rank=2), Column("NOTE", 4, right=False, elastic=True)]
    assert lines(columns, [["a", "1", "22", "a long note"]], 80) == ["A        B      C  NOTE", "a        1     22  a long note"]
    assert lines(columns, [["a", "1", "22", "a long note"]], 20) == ["A        B  NOTE", "a        1  a long n"]
    assert lines(columns, [["a", "1", "22", "a long note"]], 10) == ["A    NOTE", "a    a lon"]
    wide = lines(columns, [["a", "12345", "99999", ""]], 80)[0]
    assert wide == lines(columns, [["a", "1", "2", ""]], 80)[0]


def test_keys_of_a_terminal() -> None:
    assert list(keys_in("lq\x1b[A\x1bOB\x1b[6~\x1bx")) == ["l", "q", "up", "down"]
    assert list(keys_in("\x1b")) == ["escape"]
