"""What RocketMQ's tools ask about a broker, which is the node that they ask.

Values that this store does not have are answered with 0, since the tools and the exporter read every one of them.
"""

from __future__ import annotations

from broker.config.rocketmq import remoting_address
from broker.node import BrokerNode
from broker.remoting.admin_names import refuse_settings
from broker.remoting.codes import Answer, Request
from broker.remoting.command import VERSION, Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import answer
from broker.remoting.leader import CALL_S, Leader
from broker.remoting.traffic_windows import ALL, IN, Rate, TrafficWindows
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.rpc import methods

VERSION_TEXT = "V5_3_3"
# What is counted: by the name that a tool asks for, the place in ``Rate.counts``.
_OF_TOPIC = {"TOPIC_PUT_NUMS": 0, "TOPIC_PUT_SIZE": 1}
_OF_GROUP = {"GROUP_GET_NUMS": 2, "GROUP_GET_SIZE": 3}
_OF_BROKER = {"BROKER_PUT_NUMS": 0, "BROKER_GET_NUMS": 2}
_QUEUES = ("sendThreadPoolQueue", "pullThreadPoolQueue", "litePullThreadPoolQueue", "queryThreadPoolQueue", "ackThreadPoolQueue")
_TRUTH = {"True": "true", "False": "false"}
_ZERO = (
    "putMessageFailedTimes",
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
    "putLatency99",
    "putLatency999",
    "dispatchMaxBuffer",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "remainTransientStoreBufferNumbs",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalYesterdayMorning",
)


class AdminBrokers:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, windows: TrafficWindows) -> None:
        self._node, self._leader, self._windows = node, leader, windows

    def handlers(self) -> Handlers:
        return {
            Request.GET_BROKER_RUNTIME_INFO: self.runtime,
            Request.GET_BROKER_CONFIG: self.config,
            Request.VIEW_BROKER_STATS_DATA: self.stats,
            Request.UPDATE_BROKER_CONFIG: refuse_settings,
        }

    async def _details(self) -> diagnostics_pb2.NodeDetailsReply:
        own = self._leader.to(self._node.settings.node.address)
        return await methods.NODE_DETAILS.call(own, diagnostics_pb2.NodeDetailsRequest(), timeout_s=CALL_S)

    async def runtime(self, _request: Command, _client: RemotingConnection) -> Command:
        details, log, now_ms = await self._details(), self._node.raft.log, self._node.store.time.now_ms()
        used = 1 - details.disk_free_bytes / max(1, details.disk_total_bytes)
        oldest = min((files.oldest_ms for files in details.files if files.kind == "commitlog" and files.oldest_ms), default=now_ms)
        sizes = (_readable(size) for size in (details.disk_total_bytes, details.disk_free_bytes))
        table = dict.fromkeys(_ZERO, "0") | self._traffic()
        for queue in _QUEUES:
            table |= {f"{queue}Size": "0", f"{queue}Capacity": "10000", f"{queue}HeadWaitTimeMills": "0"}
        table |= {
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "bootTimestamp": str(details.started_at_ms),
            "startAcceptSendRequestTimeStamp": str(details.started_at_ms),
            "runtime": _duration(max(0, now_ms - details.started_at_ms)),
            "commitLogMinOffset": str(log.first_pos),
            "commitLogMaxOffset": str(log.end_pos),
            "commitLogDirCapacity": "Total : {}, Free : {}.".format(*sizes),
            "commitLogDiskRatio": f"{used:.4f}",
            "consumeQueueDiskRatio": f"{used:.4f}",
            "earliestMessageTimeStamp": str(oldest),
            "putMessageDistributeTime": "null",
            "remainHowManyDataToFlush": "0 B",
        }
        return await answer({"table": table})

    def _traffic(self) -> dict[str, str]:
        """Rates are of the last ten seconds, minute and hour; totals count from the node's start."""
        rates = (self._windows.lately(), *(self._windows.of(name) or Rate() for name in ("Minute", "Hour")))
        put, got = (" ".join(f"{rate.per_s(place):.2f}" for rate in rates) for place in (0, 2))
        messages_in, bytes_in, messages_out, _ = self._windows.total
        day = self._windows.of("Day") or Rate()
        return {
            "putTps": put,
            "getTotalTps": got,
            "getFoundTps": got,
            "getMissTps": "0.0 0.0 0.0",
            "getTransferredTps": got,
            "getTransferedTps": got,
            "msgPutTotalTodayMorning": str(messages_in - day.counts[0]),
            "msgPutTotalTodayNow": str(messages_in),
            "msgGetTotalTodayMorning": str(messages_out - day.counts[2]),
            "msgGetTotalTodayNow": str(messages_out),
            "putMessageTimesTotal": str(messages_in),
            "putMessageSizeTotal": str(bytes_in),
            "putMessageAverageSize": f"{bytes_in / max(1, messages_in):.1f}",
        }

    async def stats(self, request: Command, _client: RemotingConnection) -> Command:
        name, key = request.text("statsName"), request.text("statsKey")
        named = _OF_GROUP if IN in key else _OF_TOPIC
        of, place = (key, named[name]) if name in named else (ALL, _OF_BROKER.get(name, -1))
        rates = {window: self._windows.of(window, of) for window in self._windows.names}
        if place < 0 or None in rates.values():
            return Command(Answer.SYSTEM_ERROR, remark=f"no statistics {name} of {key}")
        rows = {f"stats{window}": _row(rate, place) for window, rate in rates.items() if rate is not None}
        return await answer(rows)

    async def config(self, _request: Command, _client: RemotingConnection) -> Command:
        """The settings in force; those of ``broker`` and ``store`` have RocketMQ's names."""
        own, cluster = self._node.settings, self._node.settings.cluster
        host, _, port = remoting_address(cluster, own.node.id, own.node.address).rpartition(":")
        known = {"brokerName": own.group.name, "brokerClusterName": cluster.cluster, "brokerIP1": host, "listenPort": port}
        rows = known | {setting.name: setting.value for setting in (await self._details()).settings}
        text = "".join(f"{_named(name)}={_TRUTH.get(value) or ' '.join(value.splitlines())}\n" for name, value in rows.items())
        return Command(Answer.SUCCESS, {"version": "{}"}, text.encode())


def _named(name: str) -> str:
    return name.removeprefix("broker.").removeprefix("store.")


def _row(rate: Rate, place: int) -> dict[str, object]:
    return {"avgpt": 0.0, "sum": rate.counts[place], "tps": round(rate.per_s(place), 2)}


def _duration(time_ms: int) -> str:
    minutes, seconds = divmod(time_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _readable(size_bytes: int) -> str:
    """As RocketMQ writes sizes; the exporter reads them."""
    size, unit = float(size_bytes), ""
    for bigger in "KMGTPE":
        if size < 1024:
            break
        size, unit = size / 1024, f"{bigger}i"
    return f"{size:.1f} {unit}B"
