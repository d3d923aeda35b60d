"""What RocketMQ's tools ask name servers beside routes: settings, key-value configuration, write permissions; most of it is refused.

A name server answers it, and so does every node.
"""

from __future__ import annotations

from broker.config.cluster_file import ClusterConfig
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import answer

_NO_VALUES = "this cluster keeps no key-value configuration"


class AdminNames:
    """Serves them by the cluster file."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster

    def handlers(self) -> Handlers:
        return {
            Request.GET_NAMESRV_CONFIG: self.config,
            Request.UPDATE_NAMESRV_CONFIG: refuse_settings,
            Request.GET_KV_CONFIG: self.no_value,
            Request.GET_KVLIST_BY_NAMESPACE: self.no_value,
            Request.DELETE_KV_CONFIG: self.nothing_to_do,
            Request.PUT_KV_CONFIG: self.refuse_value,
            Request.WIPE_WRITE_PERM_OF_BROKER: self.refuse_permission,
            Request.ADD_WRITE_PERM_OF_BROKER: self.refuse_permission,
            Request.DELETE_TOPIC_IN_NAMESRV: self.nothing_to_do,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_names,
        }

    async def config(self, _request: Command, _client: RemotingConnection) -> Command:
        service = self._cluster.name_service
        rows = {"clusterName": self._cluster.cluster, "registerInterval": service.registerInterval, "expireAfter": service.expireAfter}
        return Command(Answer.SUCCESS, body="".join(f"{name}={value}\n" for name, value in rows.items()).encode())

    async def no_value(self, _request: Command, _client: RemotingConnection) -> Command:
        return Command(Answer.QUERY_NOT_FOUND, remark=_NO_VALUES)

    async def refuse_value(self, _request: Command, _client: RemotingConnection) -> Command:
        return Command(Answer.SYSTEM_ERROR, remark=_NO_VALUES)

    async def nothing_to_do(self, _request: Command, _client: RemotingConnection) -> Command:
        """Of a tool that deletes a topic: name servers learn of it from the nodes, and there is no value of its order."""
        return Command(Answer.SUCCESS)

    async def refuse_permission(self, _request: Command, _client: RemotingConnection) -> Command:
        text = "write permission is not taken from a broker as a whole: drain the replica group (dledger cluster), or set perm"
        return Command(Answer.SYSTEM_ERROR, remark=text)

    async def system_names(self, _request: Command, _client: RemotingConnection) -> Command:
        """Topics that RocketMQ's name servers list, and a broker that has others."""
        names = {self._cluster.cluster, *(group.name for group in self._cluster.groups)}
        return await answer({"brokerAddr": "", "topicList": sorted(names)})


async def refuse_settings(_request: Command, _client: RemotingConnection) -> Command:
    return Command(Answer.SYSTEM_ERROR, remark="settings are in the cluster file: change them there, and restart the nodes one by one")
