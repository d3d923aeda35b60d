"""Routes of topics: a node tells of its own group only, and a replica may lag behind what its leader has acknowledged."""

from __future__ import annotations

import asyncio
import random

import pytest

from dledger_client.cluster.router import Router
from dledger_wire._pb import broker_pb2, retention_pb2
from dledger_wire.clock import SystemClock
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, TopicNotFoundError, UnreachableError
from dledger_wire.rpc import methods

GROUPS = {"g0": ["h:1", "h:2"], "g1": ["h:3", "h:4"]}


class Nodes:
    """A network of nodes that answer Metadata.  ``topics``: address -> queues of topic ``t`` there; ``versions``: address -> of its table
    of topics; ``stale``: who still takes itself for the leader of term 4; ``down``: who does not answer."""

    def __init__(self, groups: dict[str, list[str]] = GROUPS) -> None:
        self.groups = groups
        self.versions = dict.fromkeys(["h:1", "h:2", "h:3", "h:4"], 1)
        self.topics = {"h:1": 2, "h:2": 2, "h:3": 3, "h:4": 3}
        self.leaders = {"g0": "h:1", "g1": "h:3"}
        self.stale: set[str] = set()
        self.down: set[str] = set()
        self.moved: dict[str, str] = {}  # address -> the one whose node new connections to it come to
        self.closed: list[str] = []

    def connect(self, address: str) -> Channel:
        return Channel(self, self.moved.get(address, address))

    def answer(self, address: str, request: broker_pb2.MetadataRequest) -> broker_pb2.MetadataResponse:
        reply = broker_pb2.MetadataResponse(cluster="c", version=self.versions[address])
        reply.replica.node = address.replace(":", "-")
        for name, members in self.groups.items():
            nodes = [broker_pb2.NodeInfo(id=each.replace(":", "-"), address=each, voter=True) for each in members]
            group = reply.groups.add(name=name, nodes=nodes)
            if address in members:
                leader = address if address in self.stale else self.leaders[name]
                group.term, group.leader_address, group.leader_id = 4 if address in self.stale else 5, leader, leader
                queues = self.topics[address] if request.topics == ["t"] else 0
                found = broker_pb2.TopicInfo(name="t", group=name, read_queues=queues, write_queues=queues, perm=6, found=queues > 0)
                reply.topics.append(found)
        return reply


class Channel:
    def __init__(self, nodes: Nodes, address: str) -> None:
        self._nodes, self._address = nodes, address

    async def call(self, _method: str, request: bytes, *, timeout_s: float) -> bytes:
        if self._address in self._nodes.down:
            raise UnreachableError(f"{self._address} is down")
        return self._nodes.answer(self._address, broker_pb2.MetadataRequest.FromString(request)).SerializeToString()

    async def close(self) -> None:
        self._nodes.closed.append(self._address)


async def queues_of(router: Router, name: str = "t") -> dict[str, int]:
    found = await router.topic(name, router.clock.monotonic_ms() + 2000, fresh=True)
    return {queues.replica_group: queues.read_queues for queues in found}


def test_queues_of_every_group_are_found_and_kept_while_a_group_is_silent() -> None:
    async def scenario() -> None:
        nodes = Nodes()
        router = Router("h:1,h:3", nodes, SystemClock(), random.Random(1))  # type: ignore[arg-type]
        assert await queues_of(router) == {"g0": 2, "g1": 3}
        nodes.down = {"h:3", "h:4"}
        assert await queues_of(router) == {"g0": 2, "g1": 3}
        nodes.down = {"h:3"}
        nodes.topics |= {"h:2": 1, "h:4": 4}  # one lags, one is all there is
        nodes.versions["h:4"] = 2
        assert await queues_of(router) == {"g0": 2, "g1": 4}
        nodes.down = set()
        nodes.topics["h:3"] = nodes.topics["h:4"] = 0
        assert await queues_of(router) == {"g0": 2}
        with pytest.raises(TopicNotFoundError):
            await queues_of(router, "nowhere")

    asyncio.run(scenario())


def test_a_connection_that_led_to_another_node_is_given_up() -> None:
    """Nodes have changed places, and a name led to the old one for a while: the connection made then would last as long as it is used."""

    async def scenario() -> None:
        nodes = Nodes({"g0": ["h:1", "h:2"]})
        nodes.leaders["g0"], nodes.moved = "h:2", {"h:2": "h:1"}
        router = Router("h:2", nodes, SystemClock(), random.Random(1))  # type: ignore[arg-type]
        ask = router._nodes.ask
        assert (await ask("h:2", [])).replica.node == "h-1"
        assert (await ask("h:2", [])).replica.node == "h-1"
        nodes.moved = {}
        assert (await ask("h:2", [])).replica.node == "h-2"
        await asyncio.sleep(0)
        assert nodes.closed == ["h:1", "h:1"]
        await ask("h:2", [])
        await ask("h:1", [])
        assert nodes.closed == ["h:1", "h:1"]
        await router.close()
        assert nodes.closed == ["h:1", "h:1", "h:2", "h:1"]

    asyncio.run(scenario())


def test_a_replica_that_lags_does_not_hide_queues_just_made() -> None:
    """What the leader has acknowledged is seen by whoever looks next, whichever node he asks first, and not unlearned without it."""

    async def scenario() -> None:
        nodes = Nodes({"g0": ["h:1", "h:2", "h:3"]})
        nodes.topics |= {"h:1": 3, "h:2": 1, "h:3": 1}
        nodes.versions["h:1"] = 2
        asked_last = Router("h:2,h:3,h:1", nodes, SystemClock(), random.Random(1))  # type: ignore[arg-type]
        assert await queues_of(asked_last) == {"g0": 3}
        nodes.down = {"h:1"}
        assert await queues_of(asked_last) == {"g0": 3}
        without_leader = Router("h:2,h:3", nodes, SystemClock(), random.Random(1))  # type: ignore[arg-type]
        nodes.versions["h:3"], nodes.topics["h:3"] = 2, 3
        assert await queues_of(without_leader) == {"g0": 3}
        nodes.down, nodes.leaders["g0"] = set(), "h:2"  # its word counts whatever the others say: it has all that was acknowledged
        assert await queues_of(asked_last) == {"g0": 1}

    asyncio.run(scenario())


def test_a_leader_of_an_older_term_does_not_hide_what_the_newer_one_has_acknowledged() -> None:
    async def scenario() -> None:
        nodes = Nodes({"g0": ["h:1", "h:2", "h:3"]})
        nodes.stale, nodes.topics, nodes.versions["h:1"] = {"h:2"}, {"h:1": 3, "h:2": 1, "h:3": 1}, 2
        for bootstrap in ("h:3,h:2,h:1", "h:1,h:2,h:3"):
            router = Router(bootstrap, nodes, SystemClock(), random.Random(1))  # type: ignore[arg-type]
            assert await queues_of(router) == {"g0": 3}
            router._nodes.answered_last = "h:2"
            assert await queues_of(router) == {"g0": 3}

    asyncio.run(scenario())


class ScriptedLeader(Channel):
    """Answers calls other than Metadata with ``script``, the last of them again and again."""

    script: list[Exception]

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        if method.endswith("/Metadata"):
            return await super().call(method, request, timeout_s=timeout_s)
        raise self.script.pop(0) if len(self.script) > 1 else self.script[0]


@pytest.mark.parametrize(
    ("script", "expected", "unknown"),
    [
        ([UnreachableError("cut"), NotLeaderError("nobody leads")], UnreachableError, True),
        ([NotLeaderError("nobody leads")], NotLeaderError, False),
        ([UnreachableError("cut"), InvalidArgumentError("no such queue")], InvalidArgumentError, False),
    ],
)
def test_a_call_that_may_have_been_carried_out_once_never_ends_as_certainly_failed(
    script: list[Exception], expected: type[Exception], unknown: bool
) -> None:
    """Seed 186 of ``offsets``: the answer to a commit was lost, nobody led until the deadline, and NOT_LEADER told that it was not done."""

    class Cluster(Nodes):
        def connect(self, address: str) -> Channel:
            channel = ScriptedLeader(self, address)
            channel.script = script
            return channel

    async def scenario() -> None:
        router = Router("h:1", Cluster(), SystemClock(), random.Random(1))  # type: ignore[arg-type]
        with pytest.raises(expected) as failure:
            await router.call_leader("g0", methods.EXPIRE, retention_pb2.ExpireRequest(), deadline_ms=router.clock.monotonic_ms() + 150)
        assert failure.value.outcome_unknown is unknown  # type: ignore[attr-defined]

    asyncio.run(scenario())
