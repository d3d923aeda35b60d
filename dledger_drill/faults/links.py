"""Faults of links: partitions of every shape, and links that lose, delay, reorder or carry little."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from dledger_drill.faults.base import Fault, Strike, Target
from dledger_drill.faults.roles import Do, Role, pick
from dledger_drill.hosts.machine import Links, LinkShape
from dledger_drill.plan.model import FaultChoice, Need

CLIENTS = "clients"
FLAP_S = 0.3
LOSSY, LATE = LinkShape(loss=0.2), LinkShape(delay_ms=200.0, jitter_ms=20.0)
REORDERED, NARROW = LinkShape(reorder=0.3, delay_ms=5.0), LinkShape(bytes_per_s=128 << 10)

Cut = Callable[[Links, Sequence[str], str], None]  # links, the group's nodes, the one that is meant


def _others(nodes: Sequence[str], node: str) -> list[str]:
    return [each for each in nodes if each != node]


def _strike(target: Target, nodes: list[str], do: Callable[[Links], None], note: str = "") -> Strike:
    """A strike that fails half way is taken back."""
    links = target.links.hold()
    try:
        do(links)
    except BaseException:
        links.heal()
        raise
    return Strike(nodes, links.heal, note, lambda: links.without_effect)


def _cut(cut: Cut, role: Role = Role.LEADER) -> Do:
    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        (node,) = pick(target, choice.group, role, draw)
        return _strike(target, [node], lambda links: cut(links, list(target.groups[choice.group]), node))

    return do


def isolate_from_all(links: Links, nodes: Sequence[str], node: str) -> None:
    links.isolate(node, [*_others(nodes, node), CLIENTS])


def isolate_from_peers(links: Links, nodes: Sequence[str], node: str) -> None:
    links.isolate(node, _others(nodes, node))


def hears_nothing(links: Links, nodes: Sequence[str], node: str) -> None:
    for other in _others(nodes, node):
        links.cut(other, node)


def is_not_heard(links: Links, nodes: Sequence[str], node: str) -> None:
    for other in _others(nodes, node):
        links.cut(node, other)


def partial_cut(links: Links, nodes: Sequence[str], node: str) -> None:
    """Between the leader and one follower; both reach the others."""
    links.isolate(node, _others(nodes, node)[:1])


def all_apart(links: Links, nodes: Sequence[str], node: str) -> None:
    for each in nodes:
        links.isolate(each, _others(nodes, each))


def bridge(links: Links, nodes: Sequence[str], node: str) -> None:
    """Two halves that only a follower reaches."""
    others = _others(nodes, node)
    middle, rest = others[0], others[1:]
    half = [node, *rest[: (len(rest) - 1) // 2]]
    far = [each for each in nodes if each not in (*half, middle)]
    for each in half:
        links.isolate(each, far)


def flap(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
    """The link between the leader and a follower breaks and comes back again and again."""
    (leader,) = pick(target, choice.group, Role.LEADER, draw)
    links = target.links.hold()
    follower = draw.choice(_others(list(target.groups[choice.group]), leader))
    over, problems = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not over.is_set():
                links.isolate(leader, [follower])
                if over.wait(FLAP_S):
                    break
                links.heal()
                over.wait(FLAP_S)
        except BaseException as error:  # noqa: BLE001 - raised by ``heal``, in the thread of the drill
            problems.append(error)

    thread = threading.Thread(target=work, name="flapping link", daemon=True)
    thread.start()

    def heal() -> None:
        over.set()
        thread.join()
        links.heal()
        if problems:
            raise problems.pop()

    return Strike([leader, follower], heal, f"every {FLAP_S:g} s", lambda: links.without_effect)


def _shaped(note: str, shape: LinkShape, *, only_leader: bool = False) -> Do:
    """Every link between the group's nodes, both ways; with ``only_leader`` those of its leader."""

    def do(target: Target, choice: FaultChoice, draw: random.Random) -> Strike:
        nodes = list(target.groups[choice.group])
        sources = pick(target, choice.group, Role.LEADER, draw) if only_leader else nodes
        pairs = {pair for source in sources for other in _others(nodes, source) for pair in ((source, other), (other, source))}

        def shape_all(links: Links) -> None:
            for source, other in sorted(pairs):
                links.shape(source, other, shape)

        return _strike(target, sources, shape_all, note)

    return do


_NEED = frozenset({Need.NAMESPACES})
_CUT_S, _SHAPED_S = (1.5, 3.0), (2.0, 4.0)
FAULTS: tuple[Fault, ...] = (
    Fault("partition-leader", "partition", "the leader is cut off from nodes and clients", _CUT_S, _cut(isolate_from_all), _NEED),
    Fault("partition-leader-peers", "partition", "the leader is cut off from nodes; clients reach it", _CUT_S, _cut(isolate_from_peers)),
    Fault("partition-follower", "partition", "a follower is cut off", _CUT_S, _cut(isolate_from_all, Role.FOLLOWER), _NEED),
    Fault("partition-deaf", "partition", "the leader hears nothing of its followers, and they hear it", _CUT_S, _cut(hears_nothing)),
    Fault("partition-mute", "partition", "the leader is not heard, and hears its followers", _CUT_S, _cut(is_not_heard)),
    Fault("partition-partial", "partition", "leader and a follower are cut, both reach the third", _CUT_S, _cut(partial_cut)),
    Fault("partition-all", "partition", "no node reaches another", _CUT_S, _cut(all_apart)),
    Fault("partition-bridge", "partition", "two halves that only one node reaches", _CUT_S, _cut(bridge), frozenset({Need.FIVE_NODES})),
    Fault("partition-flapping", "partition", "the link of the leader and a follower breaks again and again", _SHAPED_S, flap),
    Fault("loss", "link", "all links lose 20 % of their packets", _SHAPED_S, _shaped("20 %", LOSSY), _NEED),
    Fault("delay", "link", "200 ms between the leader and its followers", _SHAPED_S, _shaped("200 ms", LATE, only_leader=True), _NEED),
    Fault("reorder", "link", "all links deliver packets out of order", _SHAPED_S, _shaped("30 %", REORDERED), _NEED),
    Fault("bandwidth", "link", "all links carry 128 KiB a second", _SHAPED_S, _shaped("128 KiB/s", NARROW), _NEED),
)
