"""Reflection as stock gRPC clients see it: the library's own client finds every service of a port and calls one by its descriptors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_reflection.v1alpha.reflection_pb2 import ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse

from broker.api.health import HealthService
from broker.api.reflection import V1, V1ALPHA, ReflectedServer, Reflection
from broker.security.permissions import check_of, nothing
from dledger_cli.local.ports import free_ports
from dledger_wire._pb import admin_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp.mixed_network import MixedNetwork
from tests.contract import secured
from tests.contract.secured import NODE, Users, tls

INVALID_ARGUMENT, NOT_FOUND = 3, 5  # of gRPC's status codes
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"


async def status(_request: admin_pb2.Empty, _caller: CallContext) -> admin_pb2.NodeStatusReply:
    return admin_pb2.NodeStatusReply(id="n7")


def asked(scenario: Callable[[str], Any], security: NetworkSecurity | None = None) -> Any:
    """What ``scenario``, which blocks, finds at the address of a server with two of our services and health."""

    async def run() -> Any:
        (port,) = free_ports(1)
        server: Server = ReflectedServer(MixedNetwork(security or NetworkSecurity()).serve(f"127.0.0.1:{port}"))
        HealthService({"": True}.get).register(server)
        methods.NODE_STATUS.serve(server, status)
        methods.JOIN_GROUP.serve(server, lambda stream, _caller: stream.close())
        await server.start()
        try:
            return await asyncio.wait_for(asyncio.to_thread(scenario, f"127.0.0.1:{port}"), 60)
        finally:
            await server.stop(0)

    return asyncio.run(run())


def test_the_librarys_client_finds_all_services_of_the_port() -> None:
    def scenario(address: str) -> list[str]:
        with grpc.insecure_channel(address) as channel:
            return list(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert asked(scenario) == sorted([_service(methods.NODE_STATUS), _service(methods.JOIN_GROUP), HEALTH, REFLECTION])


def test_a_client_without_our_stubs_calls_by_the_descriptors_it_is_told() -> None:
    def scenario(address: str) -> str:
        with grpc.insecure_channel(address) as channel:
            pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
            method = pool.FindServiceByName(_service(methods.NODE_STATUS)).FindMethodByName("NodeStatus")
            response = GetMessageClass(method.output_type)
            path = f"/{method.containing_service.full_name}/{method.name}"
            call = channel.unary_unary(path, lambda request: request.SerializeToString(), response.FromString)
            return str(call(GetMessageClass(method.input_type)(), timeout=20).id)

    assert asked(scenario) == "n7"


@pytest.mark.parametrize("version", [V1, V1ALPHA])
def test_both_versions_are_answered_at_a_port_with_users_to_callers_without_credentials(version: Any) -> None:
    secured.certificate(NODE, "n0")
    security = NetworkSecurity(tls("n0"), admission=Users())

    def scenario(address: str) -> ServerReflectionResponse:
        trusted = grpc.ssl_channel_credentials((Path(secured.folder()) / "ca.crt").read_bytes())
        with grpc.secure_channel(address, trusted) as channel:
            call = channel.stream_stream(version.path, methods.encode, ServerReflectionResponse.FromString)
            (answer,) = call(iter([ServerReflectionRequest(list_services="")]), timeout=20)
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(methods.NODE_STATUS.path)(b"", timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            return answer

    assert REFLECTION in [service.name for service in asked(scenario, security).list_services_response.service]
    assert check_of(version.path) is nothing


def test_a_stream_answers_one_request_after_another_and_ends_at_what_is_no_request() -> None:
    def scenario(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream(V1.path)(iter([b"", ServerReflectionRequest(list_services="").SerializeToString(), b"\x0a\x05x"]))
            assert ServerReflectionResponse.FromString(next(call)).error_response.error_code == INVALID_ARGUMENT
            assert ServerReflectionResponse.FromString(next(call)).list_services_response.service
            with pytest.raises(grpc.RpcError) as refused:
                next(call)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asked(scenario)


def test_a_file_comes_with_all_that_it_imports() -> None:
    answers = Reflection(())
    wanted = admin_pb2.NodeStatusReply.DESCRIPTOR
    by_symbol = answers.answer(ServerReflectionRequest(file_containing_symbol=wanted.full_name))
    files = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in by_symbol.file_descriptor_response.file_descriptor_proto]
    assert wanted.file.name == files[0].name
    names = {file.name for file in files}
    assert all(set(file.dependency) <= names for file in files)
    assert len(names) == len(files)
    by_name = answers.answer(ServerReflectionRequest(file_by_filename=wanted.file.name, host="here"))
    assert by_name.file_descriptor_response == by_symbol.file_descriptor_response
    assert (by_name.valid_host, by_name.original_request.file_by_filename) == ("here", wanted.file.name)


@pytest.mark.parametrize(
    "request_",
    [
        ServerReflectionRequest(file_by_filename="no/such.proto"),
        ServerReflectionRequest(file_containing_symbol="no.Such"),
        ServerReflectionRequest(file_containing_extension=ExtensionRequest(containing_type="no.Such", extension_number=1)),
        ServerReflectionRequest(file_containing_extension=ExtensionRequest(containing_type="dledger.v1.Empty", extension_number=1)),
        ServerReflectionRequest(all_extension_numbers_of_type="no.Such"),
    ],
)
def test_what_is_not_there_is_told_as_not_found(request_: ServerReflectionRequest) -> None:
    answer = Reflection(()).answer(request_)
    assert answer.error_response.error_code == NOT_FOUND
    assert answer.original_request == request_


def test_extensions_of_a_type_that_has_none() -> None:
    answer = Reflection(()).answer(ServerReflectionRequest(all_extension_numbers_of_type="dledger.v1.Empty"))
    assert answer.all_extension_numbers_response.base_type_name == "dledger.v1.Empty"
    assert not answer.all_extension_numbers_response.extension_number


def _service(method: Any) -> str:
    return str(method.path.split("/")[1])
