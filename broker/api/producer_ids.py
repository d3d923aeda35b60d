"""InitProducer: assigns a producer's id and epoch through the log, so that every later master knows them."""

from __future__ import annotations

from broker.context import ServiceContext
from broker.support.limits import at_most
from dledger_wire._pb import broker_pb2
from dledger_wire.names import check_producer_id
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.principal import Kind
from store.commands.producers import InitProducer

TIMEOUT_S = 5.0
MAX_NAME_CHARS = 255


class ProducerIdService:
    """Registers producers on the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.INIT_PRODUCER.serve(server, self.init_producer)

    async def init_producer(self, request: broker_pb2.InitProducerRequest, caller: CallContext) -> broker_pb2.InitProducerResponse:
        at_most(len(request.producer_name), "characters in a producer group's name", MAX_NAME_CHARS)
        stable_id = check_producer_id(request.stable_id) if request.stable_id else ""
        self._context.require_master()
        self._context.require_room(in_memory=False)
        if request.producer_id and not stable_id:
            # The next epoch of an id fences its current sender.
            self._context.access.require_producer(caller.principal, *self._context.store.names_of_producer(request.producer_id))
        owner = caller.principal.name if caller.principal.kind is Kind.USER else ""
        command = InitProducer(producer_id=request.producer_id, name=request.producer_name, stable_id=stable_id, owner=owner)
        registration = await self._context.command(command, TIMEOUT_S)
        reply = broker_pb2.InitProducerResponse(
            producer_id=registration.producer_id, epoch=registration.epoch, is_incomplete=registration.is_incomplete
        )
        for topic, queue_id, count in registration.stored:
            reply.stored.add(topic=topic, queue_id=queue_id, count=count)
        return reply
