"""``dledger status --check``: what each check finds, that what cannot be told is found too, and how checks are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_client.admin.cluster_status import NodeStatus, judge_group
from dledger_client.admin.status_checks import DAY_MS, DEFAULTS, NAMES, find, parse_checks
from dledger_wire.errors import InvalidArgumentError
from tests.unit.cli.test_status_command import gone, late, leader, other

NOW_MS = 1_800_000_000_000


def found(checks: str, *nodes: NodeStatus, members: dict[str, list[str]] | None = None) -> list[str]:
    return [str(finding) for finding in find([judge_group("g0", nodes)], parse_checks(checks), NOW_MS, members)]


WELL = (leader("n0", "n2"), other("n0"), other("n2"))


def test_nothing_is_found_in_a_group_that_is_well() -> None:
    assert found("all,quorum-critical=n1", *WELL) == []


def test_a_group_without_a_leader() -> None:
    nodes = (gone("n1"), other("n0", knows=""), other("n2", knows=""))
    assert found("no-leader", *nodes) == ["no-leader: g0: no leader (term 0); 2 of 3 nodes answer"]
    assert found("no-writes", *nodes) == ["no-writes: g0: no leader, so no message can be stored"]
    assert found("lag=5", *nodes) == [
        "lag: g0/n1: a member that does not answer: connection refused; not known of it: lag",
        "lag: g0: the lag is not known without a leader",
    ]
    assert found("quorum-critical=n0", *nodes) == ["quorum-critical: g0/n0: must not stop: no message can be stored even now"]


def test_a_leader_that_does_not_answer_in_time_is_one() -> None:
    nodes = (late("n1"), other("n0"), other("n2"))
    assert found("no-leader", *nodes) == []
    text = "the leader gave no answer within 2 s, so whether it takes messages is not known"
    assert found("no-writes", *nodes) == [f"no-writes: g0/n1: {text}"]


def test_a_leader_that_is_unreachable_is_named_with_the_reason() -> None:
    nodes = (gone("n1"), other("n0"), other("n2"))
    assert found("no-leader,no-writes", *nodes) == [
        "no-leader: g0/n1: the other nodes follow it (term 0), and it is unreachable: connection refused",
        "no-writes: g0/n1: the leader is unreachable: connection refused, so whether it takes messages is not known",
    ]


def test_disks_that_are_slow() -> None:
    slow = replace(other("n0"), sync_ms=2100)
    assert found("slow-disk", leader("n0", "n2"), slow, other("n2")) == [
        "slow-disk: g0/n0: a write took 2.1 s to be on its disk (limit 1 s)"
    ]
    assert found("slow-disk=2200ms", leader("n0", "n2"), slow, other("n2")) == []
    waits = replace(leader("n0", "n2"), uncommitted_ms=3000)
    assert found("slow-disk", waits, slow, other("n2"))[1:] == [
        "slow-disk: g0/n1: an entry has waited 3.0 s to be committed (limit 1 s); slow disks: n0"
    ]
    assert found("slow-disk", waits, other("n0"), other("n2")) == [
        "slow-disk: g0/n1: an entry has waited 3.0 s to be committed (limit 1 s); no disk is slow: look at the network between the nodes"
    ]


def test_members_that_are_missing_or_lag() -> None:
    late = replace(other("n0"), committed_index=80)
    nodes = (replace(leader("n0"), committed_index=100), late, gone("n2"))
    assert found("lag=19", *nodes) == [
        "lag: g0/n2: a member that does not answer: connection refused; not known of it: lag",
        "lag: g0/n0: 20 entries behind the leader n1 (limit 19)",
    ]
    assert found("lag=20", *nodes) == ["lag: g0/n2: a member that does not answer: connection refused; not known of it: lag"]
    assert found("under-replicated", *nodes) == ["under-replicated: g0/n2: a member that does not answer: connection refused"]
    far = replace(other("n0"), committed_index=10)
    assert found("under-replicated", nodes[0], far, other("n2")) == [
        "under-replicated: g0/n0: a member that is not in sync with the leader",
        "under-replicated: g0/n2: a member that is not in sync with the leader",
    ]
    removed = (leader("n0", voters="n0 n1"), other("n0"), other("n2", knows=""))
    assert found("under-replicated", *removed) == []
    assert found("under-replicated", *removed, members={"g0": ["n0", "n1", "n2"]}) == [
        "under-replicated: g0/n2: in the cluster file, but not a member"
    ]


def test_disks_certificates_damage_and_clocks_of_every_node() -> None:
    full = replace(other("n0", "read-only: the disk is full"), disk_used_percent=91.4, warnings=("damaged: 0000: byte 64",))
    expiring = replace(other("n2"), certificate_expires_at_ms=NOW_MS + 3 * DAY_MS, warnings=("its certificate expires in 3 days",))
    nodes = (leader("n2"), full, expiring)
    assert found("disk=91", *nodes) == ["disk: g0/n0: its disk is used to 91 % (limit 91)"]
    assert found("disk=92%", *nodes) == []
    assert found("cert", *nodes) == ["cert: g0/n2: its certificate expires in 3.0 days"]
    assert found("cert=2d", *nodes) == []
    assert found("damage", *nodes) == ["damage: g0/n0: damaged: 0000: byte 64"]
    off = replace(other("n0", "clock off by 9 s from the group's majority"), certificate_expires_at_ms=NOW_MS - 1)
    assert found("clock,cert=0d", leader("n2"), off, expiring) == [
        "clock: g0/n0: clock off by 9 s from the group's majority",
        "cert: g0/n0: its certificate has expired",
    ]


def test_a_silent_node_is_found_once_whatever_was_asked_of_it() -> None:
    assert found("disk,cert,damage,clock", leader("n0"), other("n0"), gone("n2")) == [
        "unreachable: g0/n2: a member that does not answer: connection refused; not known of it: disk, cert, damage, clock"
    ]
    assert found("all", leader("n0"), other("n0"), gone("n2")) == [
        "under-replicated: g0/n2: a member that does not answer: connection refused; "
        "not known of it: lag, disk, cert, damage, clock, slow-disk, alarm"
    ]


def test_which_node_must_not_stop() -> None:
    nodes = (leader("n0"), other("n0"), gone("n2"))
    assert found("quorum-critical=n2", *nodes) == []
    assert found("quorum-critical", *nodes) == [
        "quorum-critical: g0/n1: must not stop: n0 would acknowledge, 2 are needed to store a message",
        "quorum-critical: g0/n0: must not stop: n1 would acknowledge, 2 are needed to store a message",
    ]
    learner = (leader("n0", voters="n0 n1", learners="n2"), other("n0"), other("n2"))
    assert found("quorum-critical=n2", *learner) == []
    warned = "read-only: the disk is used beyond diskSpaceWarningLevelRatio"
    refusing = (leader("n0", "n2"), other("n0", warned), other("n2", warned))
    assert found("quorum-critical=n1", *refusing) == ["quorum-critical: g0/n1: must not stop: n0, n2 would take no messages as leader"]
    with pytest.raises(InvalidArgumentError, match="no such node; expected one of n1, n0, n2"):
        found("quorum-critical=n9", *nodes)


def test_a_leader_that_takes_no_messages() -> None:
    nodes = (leader("n0", "n2", state="read-only: the disk is used beyond x"), other("n0"), other("n2"))
    assert found("no-writes", *nodes) == ["no-writes: g0/n1: the leader takes no messages: read-only: the disk is used beyond x"]
    few = (leader(), other("n0"), gone("n2"))
    assert found("no-writes", *few) == ["no-writes: g0: 1 of 3 voters acknowledge, 2 are needed to store a message"]


def test_how_checks_are_written() -> None:
    assert [str(check) for check in parse_checks("all")] == [f"{name}={limit}" if limit else name for name, limit in DEFAULTS.items()]
    assert [str(check) for check in parse_checks("all,lag=5, quorum-critical=n0,quorum-critical=n1")][-2:] == [
        "quorum-critical=n0",
        "quorum-critical=n1",
    ]
    assert "lag=5" in [str(check) for check in parse_checks("all,lag=5")]
    assert set(NAMES) == {*DEFAULTS, "quorum-critical"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-leadr", "no check 'no-leadr'; expected no-leader, no-writes"),
        ("", "no check ''"),
        ("lag=many", "check lag=many: expected a number of entries"),
        ("disk=101", "check disk=101: expected a percentage from 0 to 100"),
        ("cert=soon", "check cert=soon: expected a number of days such as 14d"),
        ("no-leader=3", "check no-leader takes no value, got '3'"),
        ("all=3", "check all takes no value, got '3'"),
    ],
)
def test_what_is_no_check_is_refused_by_name(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        parse_checks(text)
