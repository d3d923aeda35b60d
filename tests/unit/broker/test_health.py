"""The health service as a stock gRPC client sees it, on the port that serves our protocol too."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker.api.health import HealthService
from dledger_cli.local.ports import free_ports
from dledger_wire.tcp.mixed_network import MixedNetwork

STATUSES = health_pb2.HealthCheckResponse


def test_a_stock_client_checks_and_watches() -> None:
    async def scenario() -> None:
        states: dict[str, bool] = {"": True, "dledger.master.g0": False}
        address = f"127.0.0.1:{free_ports(1)[0]}"
        server = MixedNetwork().serve(address)
        HealthService(states.get).register(server)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                assert (await stub.Check(health_pb2.HealthCheckRequest())).status == STATUSES.SERVING
                assert (await stub.Check(health_pb2.HealthCheckRequest(service="dledger.master.g0"))).status == STATUSES.NOT_SERVING
                for unknown in ("x", "x" * 300):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await stub.Check(health_pb2.HealthCheckRequest(service=unknown))
                    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
                watched = stub.Watch(health_pb2.HealthCheckRequest(service="late"))
                assert (await watched.read()).status == STATUSES.SERVICE_UNKNOWN
                states["late"] = True
                assert (await watched.read()).status == STATUSES.SERVING
                watched.cancel()
        finally:
            await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))
