"""What must hold of the name service, seen on the wire: every answer of every process that serves it, and what came of it in the end.

Owns the rules:

    who is named as the leader of a term was elected in it
    a process that knows of a term, from a registration it took or an answer it gave, never names a leader of an older one
    a process that took the registration of a master takes none of an older term
    an answer that calls itself complete never lacks a topic that was there seconds ago
    of a group whose nodes are all gone nobody is named as the leader, and no answer is complete
    when all is well again, all give the same answers, complete and with the true leaders, within seconds
    registrations of before, whenever they come, change none of these answers
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence

from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.security.principal import Principal
from tests.sim.cluster import SimCluster
from tests.sim.loop import Process
from tests.sim.result import LivenessError
from tests.sim.security import LIMITED

GHOST_IP = "10.0.8.1"
CALL_S = 2.0
AGREE_S = 12.0  # once everything is repaired; registrations are repeated every few seconds
POLL_S = 0.1
REPLAYED = 60
TOLD_S = 2.0  # until every name server has heard of a topic

Answers = dict[str, routes_pb2.RoutesReply]


class NameWatch:
    """Looks at every answer from its making on."""

    def __init__(self, cluster: SimCluster, draw: random.Random) -> None:
        self._cluster, self._draw = cluster, draw
        self._fences: dict[tuple[Process, str], int] = {}  # the highest term of a master that a process was told of by itself
        self._named: dict[tuple[Process, str], int] = {}  # the highest term whose leader a process named
        self.captured: dict[bytes, routes_pb2.Registration] = {}  # registrations as they were sent
        self.refused = self.answers = 0
        self._topics: frozenset[str] = frozenset()
        self._exist_from_s = 0.0
        self._ghost, self._network = cluster.new_client(GHOST_IP)
        cluster.net.on_answer.append(self._answered)

    def _answered(self, process: Process, caller: Principal, method: str, request: bytes, result: bytes | DledgerError) -> None:
        if isinstance(result, DledgerError) or caller.name in LIMITED:
            return
        if method == methods.REGISTER.path:
            self._registered(process, request, routes_pb2.RegisterReply.FromString(result))
        elif method == methods.ROUTES.path:
            reply = routes_pb2.RoutesReply.FromString(result)
            self._routed(process, reply.groups, "routes")
            self._check_topics(process, reply)
        elif method == methods.DIRECTORY.path:
            self._routed(process, routes_pb2.DirectoryReply.FromString(result).groups, "directory")

    def topics_exist(self, topics: Iterable[str]) -> None:
        """They were made, and will never be deleted."""
        self._topics, self._exist_from_s = frozenset(topics), self._cluster.loop.now_s + TOLD_S

    def _check_topics(self, process: Process, reply: routes_pb2.RoutesReply) -> None:
        if not reply.complete or self._cluster.loop.now_s < self._exist_from_s:
            return
        lacking = [topic.name for topic in reply.topics if not topic.found and topic.name in self._topics]
        if lacking:
            self._violated(f"{process.name} knows all groups, as it says, and no topic {lacking}")

    def _registered(self, process: Process, request: bytes, reply: routes_pb2.RegisterReply) -> None:
        told = routes_pb2.Registration.FromString(request)
        self.captured.setdefault(request, told)
        key = process, told.group
        known = self._fences.get(key, 0)
        if reply.accepted and told.term < known:
            self._violated(f"{process.name} took a registration of {told.node_id} in term {told.term} of {told.group}, it knew of {known}")
        self.refused += not reply.accepted
        if reply.accepted and told.master:
            self._check_leader(process, told.group, told.term, told.node_id, "registration")
            self._fences[key] = max(known, told.term)

    def _routed(self, process: Process, groups: Sequence[routes_pb2.GroupRoute] | Sequence[routes_pb2.RegisteredGroup], where: str) -> None:
        self.answers += 1
        for group in groups:
            if not group.leader_id:
                continue
            key = process, group.name
            known = max(self._fences.get(key, 0), self._named.get(key, 0))
            if group.term < known:
                text = (
                    f"{process.name} ({where}) names {group.leader_id} of term {group.term} as leader of {group.name}, it knew of {known}"
                )
                self._violated(text)
            self._check_leader(process, group.name, group.term, group.leader_id, where)
            self._named[key] = group.term

    def _check_leader(self, process: Process, group: str, term: int, node_id: str, where: str) -> None:
        elected = self._cluster.groups[group].invariants.leaders.get(term)
        if elected != node_id:
            self._violated(f"{process.name} ({where}): {node_id} leads {group} in term {term}, elected was {elected}")

    def _violated(self, text: str) -> None:
        self._cluster.trace.note("VIOLATED", "names", text)
        self._cluster.groups["g0"].invariants.violations.append(f"name service: {text}")

    # Late registrations

    async def replay_along(self, lasts_s: float) -> None:
        """Send what was captured again, to anybody, while everything else goes on."""
        until_s = self._cluster.loop.now_s + lasts_s
        while self._cluster.loop.now_s < until_s:
            await asyncio.sleep(self._draw.random() * 0.3)
            if self.captured:
                await self._send(self._draw.choice(list(self.captured)), self._draw.choice(self.addresses()))

    async def _send(self, registration: bytes, address: str) -> None:
        try:
            network = self._cluster.network_as(self._ghost, routes_pb2.Registration.FromString(registration))
            await network.connect(address).call(methods.REGISTER.path, registration, timeout_s=CALL_S)
        except DledgerError as error:
            self._cluster.trace.note("replay", address, error.code)

    # The end

    def addresses(self) -> list[str]:
        """Of all who serve the routes of the whole cluster."""
        return self._cluster.name_servers.addresses or [host.address for host in self._cluster.hosts_of("g0")]

    async def check_end(self, topics: Sequence[str]) -> float:
        """After everything was repaired.  How long it took until all answered the same, in seconds."""
        began_s = self._cluster.loop.now_s
        while (why := self._disagreement(await self._ask_all(topics))) and not self._cluster.problems():
            if self._cluster.loop.now_s > began_s + AGREE_S:
                raise LivenessError(f"name service: {why}, {AGREE_S:.0f} s after everything was repaired")
            await asyncio.sleep(POLL_S)
        took_s = self._cluster.loop.now_s - began_s
        await self._check_replays(topics)
        return took_s

    async def check_dead(self, group: str, topics: Sequence[str]) -> None:
        """All nodes of ``group`` have been away for longer than registrations count; those of its earlier terms come late again."""
        terms = [told.term for told in self.captured.values() if told.group == group]
        for registration, told in list(self.captured.items()):
            if told.group == group and told.term < max(terms):
                await self._send(registration, self._draw.choice(self.addresses()))
        for address, reply in (await self._ask_all(topics)).items():
            named = [each.leader_id for each in reply.groups if each.name == group and each.leader_id]
            if named:
                self._violated(f"{address} names {named} as leader of {group}, of which nobody has been heard for long")
            if reply.complete:
                self._violated(f"{address} calls its answer complete, though nobody of {group} has been heard for long")

    async def _check_replays(self, topics: Sequence[str]) -> None:
        before = _contents(await self._ask_all(topics))
        truth = self._truth()
        old = self._late_ones({name: master for name, (master, _) in truth.items()})
        for address in self.addresses():
            for registration in old:
                await self._send(registration, address)
        after = _contents(await self._ask_all(topics))
        if before != after and truth == self._truth():
            self._violated(f"registrations of before changed the answers from {before} to {after}")

    def _truth(self) -> dict[str, tuple[str | None, str]]:
        """(master, state) of every group, as the masters have it: an operator may drain one just now."""
        found: dict[str, tuple[str | None, str]] = {}
        for name in self._cluster.groups:
            master = self._cluster.master(name)
            node = self._cluster.hosts[master].node if master is not None else None
            found[name] = master, node.store.replica_group.state if node is not None else ""
        return found

    def _late_ones(self, masters: Mapping[str, str | None]) -> list[bytes]:
        """Half of them of those who lead now, from when they began to."""
        terms = {
            each.group: max(found.term for found in self.captured.values() if found.group == each.group) for each in self.captured.values()
        }
        newest = [
            data for data, told in self.captured.items() if told.term == terms[told.group] and told.node_id == masters.get(told.group)
        ]
        newest = newest[: REPLAYED // 2]
        return newest + self._draw.sample(list(self.captured), min(len(self.captured), REPLAYED - len(newest)))

    async def _ask_all(self, topics: Sequence[str]) -> Answers:
        request = routes_pb2.RoutesRequest(
            topics=[routes_pb2.KnownRoute(name=name) for name in topics],
            groups=[routes_pb2.KnownRoute(name=name) for name in self._cluster.groups],
        )
        found = {}
        for address in self.addresses():
            try:
                found[address] = await methods.ROUTES.call(self._network.connect(address), request, timeout_s=CALL_S)
            except DledgerError as error:
                self._cluster.trace.note("ask", address, error.code)
        return found

    def _disagreement(self, answers: Answers) -> str:
        """What is wrong with the answers; empty: nothing."""
        if len(answers) < len(self.addresses()):
            return f"only {sorted(answers)} answer"
        truth = self._truth()
        for address, reply in answers.items():
            if not reply.complete:
                return f"{address} is not complete"
            for group in reply.groups:
                master, state = truth[group.name]
                if group.found and (group.leader_id, group.state) != (master or "", state):
                    return f"{address} names {group.leader_id!r} as leader of {group.name}, {group.state}; it is {master}, {state}"
        contents = _contents(answers)
        first = next(iter(contents.values()))
        other = next((address for address, content in contents.items() if content != first), None)
        return "" if other is None else f"{other} says {contents[other]}, another {first}"


def _contents(answers: Answers) -> dict[str, tuple[object, ...]]:
    """What they say, as versions of all routes."""
    return {
        address: (
            tuple(sorted((topic.name, topic.found, topic.version) for topic in reply.topics)),
            tuple(sorted((group.name, group.found, group.version, group.term, group.leader_id) for group in reply.groups)),
        )
        for address, reply in answers.items()
    }
