"""The table of RPC methods against the .proto files, and the step between messages and bytes."""

from __future__ import annotations

import asyncio
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor

from dledger_wire import _pb
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import UnaryHandler

ROOT = Path(__file__).resolve().parents[3]
FILES = [import_module(f"{_pb.__name__}.{found.name}") for found in pkgutil.iter_modules(_pb.__path__) if found.name.endswith("_pb2")]
DECLARED: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_method_of_the_proto_files_is_in_the_table_once() -> None:
    assert set(methods.METHODS) == set(DECLARED)


@pytest.mark.parametrize("path", sorted(DECLARED))
def test_a_method_is_as_its_proto_file_declares_it(path: str) -> None:
    method, declared = methods.METHODS[path], DECLARED[path]
    assert (declared.input_type, declared.output_type) == (method.request.DESCRIPTOR, method.response.DESCRIPTOR)
    assert isinstance(method, methods.StreamMethod) is (declared.client_streaming or declared.server_streaming)


def test_paths_are_spelled_in_the_table_only() -> None:
    folders = ("dledger*", "store", "broker", "pyspark_dledger", "benchmarks", "tests")
    files = [file for folder in folders for found in ROOT.glob(folder) for file in found.rglob("*.py") if "_pb" not in file.parts]
    spelled = {file.relative_to(ROOT).as_posix() for file in files if '"' + methods.PACKAGE in file.read_text(encoding="utf-8")}
    assert spelled == {"dledger_wire/rpc/methods.py"}


def test_requests_are_limited_by_method() -> None:
    assert methods.request_limit(methods.FETCH.path) == methods.SMALL_BYTES
    assert methods.request_limit(methods.SEND_BACK.path) == methods.LIST_BYTES
    assert methods.request_limit(methods.PRODUCE.path) == methods.LARGE_BYTES
    assert methods.request_limit(methods.PACKAGE + "Broker/Unknown") == methods.SMALL_BYTES
    assert methods.request_limit("/test.Other/Method") == methods.LARGE_BYTES


class OneMethodServer:
    """Both ends of a connection that serves one method."""

    handler: UnaryHandler

    def add_unary(self, _path: str, handler: UnaryHandler) -> None:
        self.handler = handler

    async def call(self, _path: str, request: bytes, *, timeout_s: float) -> bytes:
        return await self.handler(request, None)  # type: ignore[arg-type]


def test_a_typed_handler_answers_a_typed_call() -> None:
    async def initialise(request: broker_pb2.InitProducerRequest, _context: object) -> broker_pb2.InitProducerResponse:
        return broker_pb2.InitProducerResponse(producer_id=len(request.producer_name))

    end = OneMethodServer()
    methods.INIT_PRODUCER.serve(end, initialise)  # type: ignore[arg-type]
    request = broker_pb2.InitProducerRequest(producer_name="four")
    assert asyncio.run(methods.INIT_PRODUCER.call(end, request, timeout_s=1)).producer_id == 4  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="not a InitProducerRequest"):
        asyncio.run(end.call("", b"\xff", timeout_s=1))


def test_a_response_that_is_none_is_an_unreachable_node() -> None:
    with pytest.raises(UnreachableError, match=r"10\.0\.0\.1:1: MetadataResponse of 1 bytes cannot be read"):
        methods.METADATA.parse_response(b"\xff", "10.0.0.1:1")
