"""The worlds of messages, transactions and consumers as scenarios with a name, beside those of ``scenarios.py``.

Their faults strike their own actors too, and most are drawn while they run, so that none can be left out: a seed is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.sim import leasing, messaging, owners, pressure, remaking, transacting
from tests.sim.cluster import SimCluster
from tests.sim.loop import START_S
from tests.sim.result import RunResult
from tests.sim.spread import runs as spread_runs

Sink = Callable[[str], None] | None


def run_world(name: str, seed: int, *, readable: bool = False, sink: Sink = None) -> RunResult:
    return WORLDS[name](seed, readable, sink)


def _messaging(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = messaging.run(seed, readable=readable, sink=sink)
    given = sum(len(group.seen) for group in world.groups)
    return result_of(world.rig.cluster, sum(map(len, world.acknowledged.values())), given, world.faults)


def _remaking(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = remaking.run(seed, readable=readable, sink=sink)
    given = sum(len(group.seen) for group in (*world.groups, world.latecomers))
    return result_of(world.rig.cluster, sum(len(topic.kept) for topic in world.topics.values()), given, world.faults)


def _transacting(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = transacting.run(seed, readable=readable, sink=sink)
    return result_of(world.rig.cluster, len(world.decided), world.asked, world.faults)


def _transacting_clocks(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = transacting.run(seed, leaps=True, readable=readable, sink=sink)
    return result_of(world.rig.cluster, len(world.decided), world.asked, world.faults)


def _pressure(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = pressure.run(seed, readable=readable, sink=sink)
    acknowledged = sum(len(sender.acknowledged) for sender in world.senders)
    return result_of(world.rig.cluster, acknowledged, acknowledged, world.faults)


def _leasing(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = leasing.run(seed, readable=readable, sink=sink)
    return result_of(world.rig.cluster, len(world.sent), sum(len(group.given) for group in world.pops), world.faults)


def _owners(seed: int, readable: bool, sink: Sink) -> RunResult:
    return _consuming(owners.run(seed, readable=readable, sink=sink))


def _sharers(seed: int, readable: bool, sink: Sink) -> RunResult:
    return _consuming(owners.run(seed, orderly=False, readable=readable, sink=sink))


def _spread(name: str) -> Callable[[int, bool, Sink], RunResult]:
    def run(seed: int, readable: bool, sink: Sink) -> RunResult:
        world = spread_runs.run(name, seed, readable=readable, sink=sink)
        given = sum(len(group.seen) for group in world.groups)
        return result_of(world.cluster, sum(map(len, world.acknowledged.values())), given, world.faults)

    return run


def _spares(seed: int, readable: bool, sink: Sink) -> RunResult:
    world = spread_runs.run_spares(seed, readable=readable, sink=sink)
    return result_of(world.cluster, len(world.acknowledged), world.watch.replaced, world.faults)


def _consuming(world: owners.OwnersWorld) -> RunResult:
    faults = [str(fault) for fault in (*world.strikes, *world.node_plan)]
    given = sum(map(len, world.calls.values()))
    return result_of(world.cluster, sum(map(len, world.acknowledged.values())), given, faults, world.anomalies())


WORLDS: dict[str, Callable[[int, bool, Sink], RunResult]] = {
    "messaging": _messaging,
    "remaking": _remaking,
    "transacting": _transacting,
    "transacting-clocks": _transacting_clocks,
    "pressure": _pressure,
    "leasing": _leasing,
    "owners": _owners,
    "sharers": _sharers,
    **{name: _spread(name) for name in spread_runs.VARIANTS},
    "spares": _spares,
}


def result_of(cluster: SimCluster, acknowledged: int, given: int, faults: Sequence[str], anomalies: Sequence[str] = ()) -> RunResult:
    return RunResult(
        cluster.seed,
        cluster.trace.hash,
        cluster.trace.events,
        sum(group.invariants.steps for group in cluster.groups.values()),
        cluster.loop.now_s - START_S,
        acknowledged,
        given,
        sum(len(group.invariants.leaders) for group in cluster.groups.values()),
        sum(len(group.invariants.committed) - 1 for group in cluster.groups.values()),
        tuple(faults),
        tuple(anomalies),
        tuple(cluster.strays()),
        cluster.happened(),
    )
