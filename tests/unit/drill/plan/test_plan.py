"""What a drill is to do: the same seed gives the same rounds, each fault comes in turn, names are told when they are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_drill.command.choices import chosen
from dledger_drill.plan.draw import draw_round
from dledger_drill.plan.model import DrillOptions
from dledger_wire.errors import InvalidArgumentError

FAULTS = {f"fault-{number}": (0.5, 1.0 + number) for number in range(7)}
LEADING = ("fault-2", "fault-5")
OPTIONS = DrillOptions((), (), 42)
GROUPS = ("g0", "g1")


def test_a_round_follows_from_seed_and_number_alone() -> None:
    rounds = [draw_round(OPTIONS, FAULTS, LEADING, GROUPS, number) for number in range(1, 30)]
    assert [draw_round(OPTIONS, FAULTS, LEADING, GROUPS, number) for number in range(29, 0, -1)][::-1] == rounds
    assert [draw_round(replace(OPTIONS, seed=43), FAULTS, LEADING, GROUPS, number) for number in range(1, 30)] != rounds
    assert len({each.seed for each in rounds}) == 29


def test_every_fault_comes_once_in_each_turn_and_alone_in_the_first() -> None:
    rounds = [draw_round(OPTIONS, FAULTS, LEADING, GROUPS, number) for number in range(1, 22)]
    for turn in range(3):
        assert {each.names[0] for each in rounds[7 * turn : 7 * turn + 7]} == set(FAULTS)
    assert all(len(each.faults) == 1 for each in rounds[:7])
    assert {each.names[0] for each in rounds[:2]} == {"fault-2", "fault-5"}
    assert [each.names[0] for each in rounds[:7]] != [each.names[0] for each in rounds[7:14]]


def test_some_rounds_have_two_faults_that_overlap() -> None:
    rounds = [draw_round(replace(OPTIONS, pairs=0.5), FAULTS, LEADING, GROUPS, number) for number in range(8, 208)]
    pairs = [each.faults for each in rounds if len(each.faults) == 2]
    assert 60 < len(pairs) < 140
    assert all(first.name != second.name and first.after_s < second.after_s for first, second in pairs)
    for each in rounds:
        for choice in each.faults:
            assert FAULTS[choice.name][0] <= choice.hold_s <= FAULTS[choice.name][1]
            assert choice.group in GROUPS


def test_names_and_families_are_taken_in_the_order_of_the_catalogue() -> None:
    names, families = ("kill-leader", "kill-all", "pause-leader"), {"kill": ("kill-leader", "kill-all")}
    assert chosen("pause-leader, kill", names, families, "fault") == names
    assert chosen("kill-all,kill-all", names, families, "fault") == ("kill-all",)
    assert chosen("all", names, families, "fault") == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kil-leader", "no fault 'kil-leader'; did you mean kill-leader"),
        ("", "no fault ''; expected all, kill"),
        ("zzz", "expected all, kill"),
    ],
)
def test_what_is_no_name_is_refused_with_what_is(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        chosen(text, ("kill-leader",), {"kill": ("kill-leader",)}, "fault")
