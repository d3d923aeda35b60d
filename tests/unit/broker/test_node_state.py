"""What a node says is wrong with it: all of it, and first what decides whether it can store messages."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from broker.api.node_state import Condition, conditions_of, states_of, warnings_of
from broker.metrics.catalog import ALARMS
from dledger.clock.clock_monitor import ClockMonitor
from dledger.core.types import EntryId, NodeId, Role
from dledger.settings import RaftStatus

WELL = RaftStatus(
    node_id=NodeId("n0"),
    group="g0",
    role=Role.FOLLOWER,
    term=1,
    leader=NodeId("n1"),
    confirmed=True,
    first_index=1,
    last=EntryId(1, 1),
    durable=EntryId(1, 1),
    commit_index=1,
    applied_index=1,
    pending_bytes=0,
    disk_full=False,
    damaged=(),
    copying="",
    refused_messages=0,
    failed="",
    peers=(),
)
WARNING_LEVEL = "read-only: the disk is used beyond diskSpaceWarningLevelRatio or diskFreeLimit"
OFF = "clock off by +9 s from the group's majority (maxClockSkewMs 500): leads only when no other node can"


def clocks_of(skew_ms: int = 0, lag_ms: int = 0) -> ClockMonitor:
    time = SimpleNamespace(max_skew_ms=500, lag_ms=lambda: lag_ms)
    return cast(ClockMonitor, SimpleNamespace(skew_ms=skew_ms, time=time))


def conditions(
    raft: RaftStatus = WELL, *, refuses: bool = False, skew_ms: int = 0, damage_seen: tuple[str, ...] = (), memory: str = ""
) -> list[Condition]:
    return conditions_of(raft, refuses_messages=refuses, clocks=clocks_of(skew_ms), damage_seen=damage_seen, memory=memory)


def states(raft: RaftStatus = WELL, *, refuses: bool = False, skew_ms: int = 0, damage_seen: tuple[str, ...] = ()) -> list[str]:
    return states_of(conditions(raft, refuses=refuses, skew_ms=skew_ms, damage_seen=damage_seen))


def test_a_node_that_is_well() -> None:
    assert states() == ["ok"]
    assert warnings_of(states()) == []


def test_a_full_disk_hides_neither_damage_nor_the_clock() -> None:
    raft = replace(WELL, disk_full=True, damaged=("0000: byte 64", "0000: byte 99"), refused_messages=2)
    found = states(raft, refuses=True, skew_ms=9_000)
    assert found[0] == "read-only: the disk is full"
    assert warnings_of(found) == [
        OFF,
        "damaged: 0000: byte 64 (and 1 more); no replica has the bytes so far",
        "refused 2 messages on links of replicas: see the node's log",
    ]


def test_that_it_takes_no_messages_comes_before_its_clock() -> None:
    assert states(refuses=True, skew_ms=9_000) == [WARNING_LEVEL, OFF]


@pytest.mark.parametrize(
    ("raft", "damage_seen", "expected"),
    [
        (WELL, ("0000: byte 64",), "damaged: 0000: byte 64; a restart fetches the bytes from a peer"),
        (replace(WELL, damaged=("0001: byte 1",)), ("0000: byte 64",), "damaged: 0001: byte 1; no replica has the bytes so far"),
        (replace(WELL, failed="no disk"), (), "stopped: no disk"),
        (replace(WELL, copying="copying 3 of 9 segments"), (), "copying 3 of 9 segments"),
        (replace(WELL, refused_messages=1), (), "ok; refused 1 messages on links of replicas: see the node's log"),
    ],
)
def test_each_state_in_words(raft: RaftStatus, damage_seen: tuple[str, ...], expected: str) -> None:
    assert states(raft, damage_seen=damage_seen) == [expected]


def test_clocks_that_jumped() -> None:
    (found,) = conditions_of(WELL, refuses_messages=False, clocks=clocks_of(lag_ms=-90_000), damage_seen=())
    assert found.kind == "clock"
    assert found.text.startswith("the clocks of the group jumped by ")


def test_a_replica_that_a_leader_contradicts_names_what_to_do() -> None:
    (state,) = states(replace(WELL, contradicted="n1: AppendRequest: entry 121 is committed here in term 1, but it is another one there"))
    assert state.startswith(
        "contradicted: n1: AppendRequest: entry 121 is committed here in term 1, but it is another one there; stop this"
    )
    assert state.endswith("start it with an empty one and spare: true, dledger member add --id n0, then promote it")


def test_what_followers_deny_is_told() -> None:
    (state,) = states(replace(WELL, contradictions={"denied": 2, "beyond_log": 1}))
    assert state == "ok; 3 answers of followers contradict what they had acknowledged: look for peer_contradicts in the log"


def test_each_condition_is_an_alarm_of_the_catalogue_or_none() -> None:
    worst = replace(
        WELL,
        failed="no disk",
        copying="copying 3 of 9 segments",
        damaged=("0000: byte 64",),
        contradicted="n1: entry 7",
        refused_messages=1,
    )
    kinds = [condition.kind for condition in conditions(worst, refuses=True, skew_ms=9_000, memory="memory alarm: 2 GiB in use")]
    assert kinds == ["stopped", "copying", "read_only", "memory", "clock", "damaged", "contradicted", ""]
    assert conditions(replace(WELL, disk_full=True), refuses=True)[0].kind == "disk_full"
    assert {*kinds, "disk_full"} - {""} == ALARMS.keys() - {"certificate"}
