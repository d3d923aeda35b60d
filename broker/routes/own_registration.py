"""What a node registers: its role, members, topics and figures as they are at this moment.

Owns the content, its sequence, and which part of the table of topics a name server still needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from broker.config.cluster_file import NodeConfig
from broker.context import ServiceContext
from broker.support.messages import message_of
from broker.support.process_stats import ProcessStats
from dledger.core.types import NodeId
from dledger_wire._pb import routes_pb2
from dledger_wire.status import Turn
from store.state.topics import Topic

RATE_SPAN_MS = 5_000  # a rate is of at least that long
KEPT_CHANGES = 10_000  # of topics; a name server that is further behind gets the whole table


class Rates:
    """Messages and bytes stored a second, from counters that are sampled now and then."""

    def __init__(self) -> None:
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self._at_ms = -1
        self._messages = self._bytes = 0

    def sample(self, now_ms: int, messages: int, log_bytes: int) -> None:
        """``messages`` and ``log_bytes`` so far; after a copy of the state they may have jumped, or have gone back."""
        passed_ms = now_ms - self._at_ms
        if self._at_ms >= 0 and passed_ms < RATE_SPAN_MS:
            return
        if self._at_ms >= 0:
            self.messages_per_s = max(0, messages - self._messages) * 1000 / passed_ms
            self.bytes_per_s = max(0, log_bytes - self._bytes) * 1000 / passed_ms
        self._at_ms, self._messages, self._bytes = now_ms, messages, log_bytes


class OwnRegistration:
    """Of one node.  ``refresh`` it before it is sent."""

    def __init__(self, context: ServiceContext, process: Callable[[], ProcessStats], started_at_ms: int) -> None:
        self._context = context
        self._labels = {node.id: node for _group, node in context.settings.cluster.all_nodes()}
        self._base = routes_pb2.Registration(
            cluster=context.settings.cluster.cluster,
            group=context.settings.group.name,
            node_id=context.settings.node.id,
            address=context.settings.node.address,
            host=context.settings.node.host_label,
            rack=context.settings.node.rack,
            version=process().version,
            started_at_ms=started_at_ms,
        )
        self._mark: tuple[object, ...] = ()  # what the content was made of
        self._content = b""
        self._was_master = False
        self._changes: deque[tuple[int, str]] = deque(maxlen=KEPT_CHANGES)  # version of the table of topics, and whose change made it
        self._rates = Rates()
        self.disk_used_percent = 0.0
        self.sequence = 0
        self.asks_turn = False  # to take a spare node in

    @property
    def is_master(self) -> bool:
        return bool(self._context.roles.master_term)

    @property
    def topics_version(self) -> int:
        return self._context.store.topics.version

    def topic_changed(self, name: str) -> None:
        """A topic was created, updated or deleted; called with each new version of the table."""
        self._changes.append((self.topics_version, name))

    def refresh(self) -> bool:
        """Take what is true now; whether there is something new to send."""
        raft, store = self._context.raft, self._context.store
        group = store.replica_group.settings
        configuration_index, membership = raft.committed_members()
        turn = self._turn()
        mark = (raft.term, raft.role, self.is_master, configuration_index, membership, store.topics.version, group, turn)
        if mark == self._mark:
            return False
        self._mark = mark
        registration = routes_pb2.Registration()
        registration.CopyFrom(self._base)
        registration.term, registration.role, registration.master = raft.term, raft.role.value, self.is_master
        self._was_master |= registration.master
        registration.resigned = self._was_master and not registration.master
        registration.configuration_index = configuration_index
        for node in (*membership.voters, *membership.learners):
            registration.members.append(self._member(node, voter=node in membership.voters))
        registration.state, registration.state_version, registration.group_epoch = group.state, group.version, group.epoch_ms
        wanted = self._context.wanted_replicas()
        registration.wanted_voters, registration.wanted_learners = wanted.voters, wanted.learners
        if registration.master:
            # The master's registration carries changes of the table; the others only mention its version.
            registration.topics_version = store.topics.version
            registration.replacing, registration.spare, registration.absent = turn
        content = registration.SerializeToString(deterministic=True)
        if content == self._content:
            return False
        self._content = content
        self.sequence += 1
        return True

    def _turn(self) -> tuple[int, str, str]:
        """Whether the group asks for its turn to take a spare node in, or has it; the spare node, and the member whose place it takes."""
        now = self._context.store.replica_group.replacement
        return (Turn.ASKED if self.asks_turn else Turn.NONE, "", "") if now is None else (Turn.HELD, now.spare, now.absent)

    def message(self, known_version: int | None) -> routes_pb2.Registration:
        """To be sent; ``known_version``: send what is newer than that in the table of topics (-1: all of it), None: nothing of it."""
        registration = routes_pb2.Registration()
        registration.ParseFromString(self._content)
        raft, store = self._context.raft.status(), self._context.store
        registration.sequence, registration.topics_version = self.sequence, store.topics.version
        registration.applied_index, registration.committed_index = raft.applied_index, raft.commit_index
        registration.disk_used_percent, registration.node_state = (
            self.disk_used_percent,
            _state_of(raft.failed, raft.copying, full=raft.disk_full),
        )
        if registration.master:
            self._rates.sample(self._context.env.clock.monotonic_ms(), store.applied.messages, store.applied.end_pos)
            registration.messages_in_per_s, registration.bytes_in_per_s = self._rates.messages_per_s, self._rates.bytes_per_s
            registration.in_sync.extend(peer.node_id for peer in raft.peers if peer.acknowledges and peer.match_index >= raft.commit_index)
        if known_version is not None:
            self._add_topics(registration, known_version)
        return registration

    def _add_topics(self, registration: routes_pb2.Registration, known_version: int) -> None:
        topics = self._context.store.topics
        names = self._changed_since(known_version)
        registration.has_topics = True
        if names is None:
            registration.topics.extend(_queues(topic) for topic in topics)
            return
        registration.topics_base = known_version
        for name in names:
            topic = topics.get(name)
            if topic is None:
                registration.removed_topics.append(name)
            else:
                registration.topics.append(_queues(topic))

    def _changed_since(self, version: int) -> Iterable[str] | None:
        """The topics that changed after that version of the table; None when not every change is known."""
        newest = self.topics_version
        if version <= 0 or version > newest:
            return None
        names: dict[str, None] = {}
        expected = newest
        for changed_version, name in reversed(self._changes):
            if changed_version <= version:
                break
            if changed_version != expected:
                return None
            names[name] = None
            expected -= 1
        return names if expected == version else None

    def _member(self, node: NodeId, *, voter: bool) -> routes_pb2.Member:
        known = self._labels.get(node)
        address = self._context.raft.address_of(node) or (known.address if known is not None else "")
        host, rack = _labels(known)
        return routes_pb2.Member(id=node, address=address, voter=voter, host=host, rack=rack)


def _labels(node: NodeConfig | None) -> tuple[str, str]:
    return ("", "") if node is None else (node.host_label, node.rack)


def _queues(topic: Topic) -> routes_pb2.RouteQueues:
    return message_of(routes_pb2.RouteQueues, topic, topic=topic.name)


def _state_of(failed: str, copying: str, *, full: bool) -> str:
    if failed:
        return f"stopped: {failed}"
    return copying or ("read-only: the disk is full" if full else "ok")
