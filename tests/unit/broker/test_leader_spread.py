"""Leaders spread over hosts: every transfer makes them more even, then nothing moves any more."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.leadership.leader_spread import Leader, better_place
from broker.routes.own_registration import Rates
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until

__all__ = ["quiet"]


def spread(leaders: dict[str, str]) -> int:
    """The most groups that a host leads, less the least of hosts that lead any or could."""
    counts = [sum(each == host for each in leaders.values()) for host in ("h0", "h1", "h2")]
    return max(counts) - min(counts)


def test_one_group_alone_never_moves() -> None:
    assert better_place("g0", "h0", [("n1", "h1"), ("n2", "h2")], [Leader("g0", "h0")]) is None


def test_a_difference_of_one_is_even_enough() -> None:
    leaders = [Leader("g0", "h0"), Leader("g1", "h0"), Leader("g2", "h1")]
    assert better_place("g0", "h0", [("n1", "h1")], leaders) is None
    assert better_place("g0", "h0", [("n1", "h1"), ("n2", "h2")], leaders) == "n2"
    assert better_place("g2", "h1", [("n0", "h0"), ("n2", "h2")], leaders) is None


def test_a_member_without_a_known_host_is_no_place() -> None:
    leaders = [Leader(f"g{n}", "h0") for n in range(5)]
    assert better_place("g0", "h0", [("n1", "")], leaders) is None
    assert better_place("g0", "", [("n1", "h1")], leaders) is None


@pytest.mark.parametrize("seed", range(50))
def test_leaders_become_even_and_stay_where_they_are(seed: int) -> None:
    rng = random.Random(seed)
    hosts = ("h0", "h1", "h2")
    leaders = {f"g{n}": rng.choice(hosts[: 1 + seed % 3]) for n in range(1 + seed % 30)}
    quiet = moves = 0
    while quiet < 10 * len(leaders):
        # Some masters look at the same moment, at a directory that shows none of their transfers.
        seen = [Leader(group, host) for group, host in leaders.items()]
        quiet += 1
        for group in rng.sample(sorted(leaders), rng.choice((1, 1, 1, min(2, len(leaders))))):
            place = better_place(group, leaders[group], [(host, host) for host in hosts], seen)
            if place is not None:
                leaders[group] = place
                quiet, moves = 0, moves + 1
        assert moves < 1000
    assert spread(leaders) <= 1


def test_masters_spread_over_hosts_by_themselves_and_then_keep_still() -> None:
    hosts = {f"n{number}": f"h{number % 3}" for number in range(9)}

    async def scenario(rig: Rig) -> None:
        groups = [f"g{number}" for number in range(3)]
        async with rig.admin() as admin:
            for number, group in enumerate(groups):
                await admin.transfer_leader(f"n{number * 3}", replica_group=group)

        def led_from() -> dict[str, str]:
            return {group: hosts[rig.master_of(group)] for group in groups if rig.cluster.master(group)}

        await until(lambda: len(led_from()) == len(groups) and spread(led_from()) <= 1)
        await asyncio.sleep(30)  # of virtual time: a transfer that was decided before
        still = led_from()
        await asyncio.sleep(60)
        assert led_from() == still
        assert spread(still) <= 1

    Rig(31, groups=3, hosts=hosts).run(scenario, limit_s=400)


def test_rates_are_of_some_seconds_and_never_negative() -> None:
    rates = Rates()
    rates.sample(1_000, 100, 1_000)
    assert (rates.messages_per_s, rates.bytes_per_s) == (0, 0)
    rates.sample(2_000, 900, 9_000)
    assert (rates.messages_per_s, rates.bytes_per_s) == (0, 0)
    rates.sample(11_000, 1_100, 21_000)
    assert (rates.messages_per_s, rates.bytes_per_s) == (100, 2_000)
    rates.sample(21_000, 0, 0)
    assert (rates.messages_per_s, rates.bytes_per_s) == (0, 0)
