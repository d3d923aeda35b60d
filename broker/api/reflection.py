"""The standard gRPC reflection service, so that grpcurl and its like find out what a port serves and call it without our proto files.

Owns the answers, in both versions of the protocol: ``grpc.reflection.v1`` and ``v1alpha`` differ in their names only.  As for health, the
messages are those of the library (grpcio-reflection) and the handlers are ours.  Descriptors are no secret: they stand in ``proto/``.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, StreamHandler, UnaryHandler, WrappedServer

INVALID_ARGUMENT, NOT_FOUND = 3, 5  # of gRPC's status codes

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
        self._pool = descriptor_pool.Default()

    async def stream(self, stream: ByteStream, _caller: CallContext) -> None:
        """Answer each request of a stream in turn.  InvalidArgumentError ends it: a message that is no request."""
        while (data := await stream.read()) is not None:
            await stream.write(methods.encode(self.answer(methods.decode(ServerReflectionRequest, data))))

    def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """The answer to one request; one that fails says so in ``error_response``, as the protocol has it."""
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except KeyError:
            _fail(response, NOT_FOUND, "no such file, symbol or extension here")
        return response

    def _fill(self, response: ServerReflectionResponse, request: ServerReflectionRequest) -> None:
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            found = response.list_services_response.service
            found.extend(reflection_pb2.ServiceResponse(name=name) for name in self._services)
        elif asked == "file_by_filename":
            _put_files(response, self._pool.FindFileByName(request.file_by_filename))
        elif asked == "file_containing_symbol":
            _put_files(response, self._pool.FindFileContainingSymbol(request.file_containing_symbol))
        elif asked == "file_containing_extension":
            of = request.file_containing_extension
            extended = self._pool.FindMessageTypeByName(of.containing_type)
            _put_files(response, self._pool.FindExtensionByNumber(extended, of.extension_number).file)
        elif asked == "all_extension_numbers_of_type":
            extended = self._pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            numbers = sorted(extension.number for extension in self._pool.FindAllExtensions(extended))
            response.all_extension_numbers_response.base_type_name = extended.full_name
            response.all_extension_numbers_response.extension_number.extend(numbers)
        else:
            _fail(response, INVALID_ARGUMENT, "the request asks for nothing that this server knows")


def _put_files(response: ServerReflectionResponse, file: FileDescriptor) -> None:
    """The file and all that it imports: a client needs one answer only."""
    found: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each
            waiting += each.dependencies
    for each in found.values():
        copied = descriptor_pb2.FileDescriptorProto()
        each.CopyToProto(copied)
        response.file_descriptor_response.file_descriptor_proto.append(copied.SerializeToString())


def _fail(response: ServerReflectionResponse, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text


def _service_of(method: str) -> str:
    return method.split("/")[1]
