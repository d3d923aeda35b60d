"""All samples of a node, collected on its event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker.api.connections import counts_of
from broker.api.log_segments import committed_end
from broker.api.node_state import conditions_of
from broker.metrics.catalog import ALARMS
from broker.metrics.process_samples import add_services
from broker.metrics.raft_samples import add_log, add_raft, add_unopened
from broker.metrics.samples import Samples
from broker.metrics.slow_figures import SlowFigures, SlowLook
from broker.metrics.top import TopCounters
from broker.node import BrokerNode
from dledger.runtime.env import space_of
from dledger.settings import RaftStatus
from dledger_wire.names import dlq_topic, group_of_topic, retry_topic
from store.traffic import Counts

TRAFFIC = ("messages_in_total", "bytes_in_total", "messages_out_total", "bytes_out_total")
CHECKS = ("asked", "no producer", "given up")


class NodeSamples:
    """The samples of one node; one look at a time."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        limits = node.settings.cluster.metrics
        self._topics = TopCounters(limits.topics, len(TRAFFIC))
        self._rejected = TopCounters(limits.consumerGroups, 2)  # dead letters and retries of groups
        self._redelivered = TopCounters(limits.consumerGroups, 2)
        self._slow: SlowLook | None = None

    async def samples(self) -> Samples:
        """Of this moment; of a node that is not open what there is."""
        node = self._node
        samples = Samples("node", node.settings.group.name, node.settings.node.id)
        status = node.raft.status() if node.is_open else None
        add_services(samples, node.measures, node.security.access.refusals, node.security.certificate)
        samples.add("backpressure_seconds_total", node.measures.backpressure_s)
        for kind, on in self._alarms(status).items():
            samples.add("alarm", on, kind)
        if status is None:
            add_unopened(samples)
        else:
            add_raft(samples, node, status)
            add_log(samples, node, status)
            samples.add_each("quota_throttled_seconds_total", node.context.quotas.throttled_s)
            samples.add_each("quota_throttled_requests_total", node.context.quotas.throttled_requests)
            samples.add_each("connection_states", (await counts_of(node.context, node.connections())).states)
            await self._add_store(samples, status)
            self._add_traffic(samples)
            await self._add_groups(samples)
        return samples

    def _alarms(self, status: RaftStatus | None) -> dict[str, bool]:
        node = self._node
        watched = [text for text in node.security.certificate.warnings() if not text.startswith("takes plaintext")]
        alarms = {"certificate": bool(watched)}
        if status is None:
            return alarms
        refuses, clocks = node.store.is_low_on_space, node.raft.clocks
        seen, memory = node.damage.texts, node.memory_alarm.text
        found = conditions_of(status, refuses_messages=refuses, clocks=clocks, damage_seen=seen, memory=memory)
        kinds = {condition.kind for condition in found}
        node_alarms = {kind: kind in kinds for kind in ALARMS if kind not in alarms}
        return alarms | node_alarms | {"stopped": "stopped" in kinds or node.failed.done()}

    async def _add_store(self, samples: Samples, status: RaftStatus) -> None:
        node = self._node
        disk, store = node.context.env.disk, node.store
        behind = await committed_end(node.raft.log, status.commit_index) - store.applied.end_pos
        samples.add("store_dispatch_behind_bytes", max(0, behind))
        space = await space_of(disk)
        samples.add("store_disk_used_ratio", space.used_ratio)
        samples.add("store_disk_free_bytes", space.free_bytes)
        samples.add("store_topics", len(store.topics))
        samples.add("store_queues", len(store.queues))
        samples.add("message_size_bytes", store.traffic.sizes)

    def _add_traffic(self, samples: Samples) -> None:
        traffic, now_ms = self._node.store.traffic, self._node.context.env.clock.monotonic_ms()
        changed, traffic.changed = traffic.changed, {}
        counts = {topic: traffic.topics[topic].values for topic in changed if topic in traffic.topics}
        self._topics.update(counts, now_ms)
        self._topics.forget_all_but(traffic.topics)
        for topic, values in self._topics.series().items():
            for name, value in zip(TRAFFIC, values, strict=True):
                samples.add(name, value, topic)
        self._rejected.update(_rejected(changed, traffic.topics), now_ms)
        self._rejected.forget_all_but(filter(None, map(group_of_topic, traffic.topics)))
        for group, (dead, retried) in self._rejected.series().items():
            samples.add("dlq_messages_total", dead, group)
            samples.add("retry_messages_total", retried, group)

    async def _add_groups(self, samples: Samples) -> None:
        node, context = self._node, self._node.context
        if self._slow is None:
            self._slow = SlowLook(context, node.settings.cluster.metrics.consumerGroups, node.looks, node.damage)
        slow = await self._slow.figures()
        if slow.oldest_ms is not None:
            samples.add("store_oldest_message_seconds", max(0, node.store.time.now_ms() - slow.oldest_ms) / 1000)
        for result in CHECKS:
            samples.add("transaction_checks_total", node.measures.transaction_checks[result], result)
        limit = node.settings.cluster.metrics.consumerGroups
        inflight = node.measures.given.inflight(node.store.consumer_offsets.known_position, context.env.clock.monotonic_ms())
        for topic, group in sorted(inflight, key=lambda pair: (-inflight[pair], pair))[:limit]:
            samples.add("consumer_inflight", inflight[topic, group], topic, group)
        if slow.term and slow.term == node.roles.master_term:
            _add_of_master(samples, slow, node.store.time.now_ms())
        self._add_redelivered(samples)

    def _add_redelivered(self, samples: Samples) -> None:
        counted = self._node.measures.redelivered
        changed, counted.changed = counted.changed, {}
        self._redelivered.update({group: counted.counts[group] for group in changed}, self._node.context.env.clock.monotonic_ms())
        self._redelivered.forget_all_but(counted.counts)
        for group, (again, dead) in self._redelivered.series().items():
            samples.add("leased_again_total", again, group)
            samples.add("leased_dead_letters_total", dead, group)


def _add_of_master(samples: Samples, slow: SlowFigures, now_ms: int) -> None:
    for (topic, group), messages in slow.lag_messages.items():
        samples.add("consumer_lag_messages", messages, topic, group)
    for (topic, group), seconds in slow.lag_seconds.items():
        samples.add("consumer_lag_seconds", seconds, topic, group)
    for (topic, group), leased in slow.leased.items():
        samples.add("leased_messages", leased.in_flight, topic, group)
        samples.add("leased_oldest_seconds", max(0, now_ms - leased.first_ms) / 1000 if leased.first_ms else 0, topic, group)
    waits = {"delay_messages_pending": slow.delayed, "delay_lag_seconds": slow.delay_lag_s, "half_messages": slow.half_messages}
    for name, value in waits.items():
        if value is not None:
            samples.add(name, value)


def _rejected(changed: Iterable[str], topics: Mapping[str, Counts]) -> dict[str, Sequence[int]]:
    """Consumer group -> dead letters and retries, of the groups whose topics with either are among ``changed``."""
    groups = dict.fromkeys(filter(None, map(group_of_topic, changed)))
    nothing = Counts()
    return {group: [topics.get(name(group), nothing).messages_in for name in (dlq_topic, retry_topic)] for group in groups}
