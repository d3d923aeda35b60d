"""The standard gRPC reflection service, so that grpcurl and its like find out what a port serves and call it without our proto files.

Owns that both versions of the protocol are served: ``grpc.reflection.v1`` and ``v1alpha`` differ in their names only.  The answers
are those of the library (grpcio-reflection).  Descriptors are no secret: they stand in ``proto/``.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, StreamHandler, UnaryHandler, WrappedServer

_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
V1ALPHA = methods.StreamMethod(f"/{_SERVICE}/ServerReflectionInfo", ServerReflectionRequest, ServerReflectionResponse)
V1 = methods.StreamMethod(V1ALPHA.path.replace("v1alpha", "v1"), ServerReflectionRequest, ServerReflectionResponse)


class ReflectedServer(WrappedServer):
    """A server that lists the services that were added to it."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._services: set[str] = set()

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._services.add(_service_of(method))
        self._server.add_unary(method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._services.add(_service_of(method))
        self._server.add_stream(method, handler)

    async def start(self) -> None:
        # The newer version has no descriptors in the library: it is served, and only the older one is listed.
        answers = Reflection(sorted({*self._services, _SERVICE}))
        for version in (V1, V1ALPHA):
            version.serve(self._server, answers.stream)
        await self._server.start()


class Reflection:
    """Answers for ``services``, by full name, from the descriptors that this process has loaded."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)

    async def stream(self, stream: ByteStream, _caller: CallContext) -> None:
        """Answer each request of a stream in turn.  InvalidArgumentError ends it: a message that is no request."""
        while (data := await stream.read()) is not None:
            await stream.write(methods.encode(self.answer(methods.decode(ServerReflectionRequest, data))))

    def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        from grpc_reflection.v1alpha.reflection import ReflectionServicer  # loads gRPC, which a node need not at its start

        answer: ServerReflectionResponse
        (answer,) = ReflectionServicer(self._services).ServerReflectionInfo(iter([request]), None)
        answer.valid_host = request.host
        return answer


def _service_of(method: str) -> str:
    return method.split("/")[1]
