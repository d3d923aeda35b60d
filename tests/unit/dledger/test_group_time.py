"""The group's time: a clock that leaps moves nobody, an honest downtime counts, and who is off is known."""

from __future__ import annotations

from dledger.clock.group_time import SLEW, Clocks, GroupTime
from dledger.core.types import NodeId

DAY_MS = 86_400_000
LEAP_MS = 1000 * DAY_MS
START_MS = 1_750_000_000_000
NAMES = [NodeId(name) for name in ("n0", "n1", "n2")]


class HandClock:
    """Set by hand; all hosts share the time that really passes."""

    passed_ms = 0

    def __init__(self, ahead_ms: int = 0, boot_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.boot_ms = boot_ms

    def monotonic_ms(self) -> int:
        return HandClock.passed_ms - self.boot_ms

    def wall_ms(self) -> int:
        return START_MS + HandClock.passed_ms + self.ahead_ms


class Group:
    """Nodes that tell each other their clocks whenever a heartbeat would."""

    def __init__(self, *ahead_ms: int) -> None:
        HandClock.passed_ms = 5000
        self.clocks = {name: HandClock(ahead, 777 * number) for number, (name, ahead) in enumerate(zip(NAMES, ahead_ms, strict=False))}
        self.times = {name: GroupTime(clock, 10_000) for name, clock in self.clocks.items()}
        self.voters = NAMES[: max(len(ahead_ms), 1)]
        self.down: set[NodeId] = set()

    def beat(self, leader: str, ms: int = 100, times: int = 1) -> None:
        for _ in range(times):
            HandClock.passed_ms += ms
            told = self.times[NodeId(leader)].for_followers(NodeId(leader), self.voters)
            for name, time in self.times.items():
                if name != leader and name not in self.down:
                    time.led(NodeId(leader), told)
                    self.times[NodeId(leader)].answered(name, time.for_leader())

    def restart(self, name: str) -> GroupTime:
        time = self.times[NodeId(name)] = GroupTime(self.clocks[NodeId(name)], 10_000)
        return time

    def error_ms(self, name: str) -> int:
        """How far a node's idea of the group's time is from what has really passed."""
        return self.times[NodeId(name)].wall_ms() - START_MS - HandClock.passed_ms

    def skew_ms(self, name: str) -> int:
        return self.times[NodeId(name)].skew_ms(NodeId(name), self.voters)


def test_the_clock_of_a_leader_that_leaps_moves_nobodys_time_and_is_known_to_be_off() -> None:
    group = Group(0, 30, -20)
    group.beat("n0", times=20)
    group.clocks[NAMES[0]].ahead_ms = LEAP_MS
    for _ in range(50):
        group.beat("n0")
        assert max(abs(group.error_ms(name)) for name in NAMES) < 50
    assert abs(group.skew_ms("n0") - LEAP_MS) < 100
    assert abs(group.skew_ms("n1")) < 100
    group.clocks[NAMES[0]].ahead_ms = 0
    group.beat("n0", times=20)
    assert abs(group.skew_ms("n0")) < 100
    assert max(abs(group.error_ms(name)) for name in NAMES) < 50


def test_a_follower_whose_clock_leaps_is_off_and_keeps_the_groups_time_when_it_leads() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    group.clocks[NAMES[1]].ahead_ms = -LEAP_MS
    group.beat("n0")
    assert abs(group.skew_ms("n1") + LEAP_MS) < 100
    group.beat("n0", times=10)
    assert abs(group.times[NAMES[0]].peer_skew_ms(NAMES[0], NAMES[1], group.voters) + LEAP_MS) < 100
    group.beat("n1", times=50)
    assert abs(group.error_ms("n1")) < 50


def test_when_all_clocks_leap_time_goes_on_as_it_really_passes() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    for clock in group.clocks.values():
        clock.ahead_ms = LEAP_MS
    group.beat("n0", times=50)
    assert 0 <= group.error_ms("n0") <= 5000 * SLEW + 20
    assert group.times[NAMES[0]].lag_ms() > 10_000
    assert group.skew_ms("n0") == 0


def test_a_group_of_one_whose_clock_leaps_lives_on_at_its_own_pace() -> None:
    group = Group(0)
    time = group.times[NAMES[0]]
    time.guess(NAMES[0], group.voters, 0)
    assert time.is_known
    group.clocks[NAMES[0]].ahead_ms = LEAP_MS
    group.beat("n0", times=50)
    assert 0 <= group.error_ms("n0") <= 5000 * SLEW + 20
    group.clocks[NAMES[0]].ahead_ms = 0
    group.beat("n0", times=100)
    assert abs(group.error_ms("n0")) <= 20


def test_a_long_downtime_of_all_counts() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    HandClock.passed_ms += 30 * DAY_MS
    for name in NAMES:
        assert not group.restart(name).is_known
    group.beat("n2")  # it hears them with the answers to its first heartbeat
    group.beat("n2")
    assert max(abs(group.error_ms(name)) for name in NAMES) < 50


def test_a_node_that_starts_with_a_wrong_clock_takes_the_time_of_those_who_live() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    group.clocks[NAMES[1]].ahead_ms = group.clocks[NAMES[2]].ahead_ms = LEAP_MS  # the majority's are wrong now
    time = group.restart("n1")
    group.beat("n1", times=2)  # it leads at once, and hears n0 and n2
    assert time.is_known
    assert abs(group.error_ms("n1")) < 50


def test_of_two_clocks_that_differ_the_one_nearer_to_the_log_counts_until_a_majority_agrees() -> None:
    group = Group(LEAP_MS, 0, 0)
    group.down = {NAMES[2]}
    group.beat("n0", times=3)
    time = group.times[NAMES[0]]
    assert not time.is_known
    time.guess(NAMES[0], group.voters, START_MS - 1000)
    assert abs(group.error_ms("n0")) < 150
    assert group.skew_ms("n0") == 0  # who of the two is wrong nobody knows
    group.down = set()
    group.beat("n0", times=3)
    assert abs(group.skew_ms("n0") - LEAP_MS) < 150


def test_half_of_the_clocks_is_no_majority() -> None:
    """Two of two, and two of four, that differ: nobody knows which half is wrong."""
    pair = Group(0, LEAP_MS)
    pair.beat("n0", times=3)
    time = pair.times[NAMES[0]]
    assert time.lead(NAMES[0], pair.voters) is None
    assert (pair.skew_ms("n0"), time.peer_skew_ms(NAMES[0], NAMES[1], pair.voters)) == (0, 0)
    trio = Group(0, 0, LEAP_MS)
    trio.beat("n0", times=3)
    four = [*NAMES, NodeId("n3")]
    assert trio.times[NAMES[0]].lead(NAMES[0], four) is None
    assert trio.times[NAMES[0]].lead(NAMES[0], NAMES) is not None


def test_no_clock_before_the_log_counts() -> None:
    group = Group(-LEAP_MS, -LEAP_MS - 20_000, 0)
    group.down = {NAMES[2]}
    group.beat("n0", times=3)
    time = group.times[NAMES[0]]
    time.guess(NAMES[0], group.voters, START_MS)
    assert time.wall_ms() == START_MS


def test_a_small_difference_is_made_up_slowly_and_time_never_goes_back() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    for clock in group.clocks.values():
        clock.ahead_ms = -500
    times = []
    for _ in range(1000):
        group.beat("n0")
        times.append(group.times[NAMES[0]].wall_ms())
    assert times == sorted(times)
    assert abs(group.error_ms("n0") + 500) < 50


def test_a_message_that_lay_somewhere_is_no_clock_that_is_behind() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    old = group.times[NAMES[0]].for_followers(NAMES[0], group.voters)
    HandClock.passed_ms += 60_000
    group.times[NAMES[1]].led(NAMES[0], old)
    assert abs(group.skew_ms("n1")) < 100
    assert abs(group.error_ms("n1")) < 100


def test_nonsense_is_no_time() -> None:
    group = Group(0, 0, 0)
    group.beat("n0", times=20)
    group.times[NAMES[1]].led(NAMES[0], Clocks(1, (1 << 64) - 1, 1 << 63))
    assert abs(group.error_ms("n1")) < 50
    assert abs(group.skew_ms("n1")) < 100
