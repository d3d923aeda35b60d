"""All samples of a name server and of a waiting spare node."""

from __future__ import annotations

from broker.membership.waiting_spare import WaitingSpare
from broker.metrics.process_samples import add_services
from broker.metrics.samples import Samples
from broker.nameserver.node import NameServerNode

NAME_SERVERS, SPARES = "name-servers", "spares"  # in place of a replica group


class NameServerSamples:
    """The samples of one name server."""

    def __init__(self, server: NameServerNode) -> None:
        self._server = server

    async def samples(self) -> Samples:
        server = self._server
        table, figures, quorum = server.table, server.service.figures, server.quorum.state()
        samples = Samples("name server", NAME_SERVERS, server.settings.server.id)
        add_services(samples, server.measures, server.access.refusals, server.certificate)
        groups = list(table.groups)
        nodes = [*(node for group in groups for node in group.rows.values()), *table.spares]
        led = {group.name for group in groups if group.leader is not None or group.removed}
        without = [group.name for group in server.settings.cluster.groups if group.name not in led]
        samples.add("nameserver_has_quorum", quorum.has_majority)
        samples.add("nameserver_is_leader", quorum.role == "leader")
        samples.add("nameserver_groups", table.known_groups)
        samples.add("nameserver_groups_without_leader", len(without))
        for state, expired in (("live", False), ("expired", True)):
            samples.add("nameserver_nodes", sum(node.expired is expired for node in nodes), state)
        samples.add("nameserver_topics", table.topic_count)
        samples.add("nameserver_waiting_clients", server.service.waiting_clients)
        samples.add("nameserver_registrations_total", figures.registrations)
        samples.add("nameserver_refused_registrations_total", figures.refused_registrations)
        samples.add("nameserver_route_requests_total", figures.routes_requests)
        samples.add("alarm", any(not text.startswith("takes plaintext") for text in server.certificate.warnings()), "certificate")
        return samples


class SpareSamples:
    """The samples of a spare node that no replica group has taken in yet."""

    def __init__(self, spare: WaitingSpare, node_id: str) -> None:
        self._spare, self._node_id = spare, node_id

    async def samples(self) -> Samples:
        samples = Samples("spare", SPARES, self._node_id)
        add_services(samples, self._spare.measures, self._spare.access.refusals, self._spare.certificate)
        return samples
