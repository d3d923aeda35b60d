"""The network seam over grpc.aio: generic handlers, identity serializers, so that what travels is the caller's bytes.

Owns which credentials and services its channels and servers get: ``grpc_channel`` dials, ``grpc_server`` serves.  Knows nothing of what the
methods mean.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio

from dledger_wire.rpc.grpc_callers import GrpcCallers
from dledger_wire.rpc.grpc_channel import GrpcChannel
from dledger_wire.rpc.grpc_server import GrpcServer


class GrpcNetwork:
    """The real network.  ``configure_server`` may add services to every server before it starts (health, reflection)."""

    def __init__(
        self,
        *,
        channel_credentials: grpc.ChannelCredentials | None = None,
        server_credentials: grpc.ServerCredentials | None = None,
        configure_server: Callable[[grpc.aio.Server], None] | None = None,
        callers: GrpcCallers | None = None,
    ) -> None:
        self._channel_credentials = channel_credentials
        self._server_credentials = server_credentials
        self._configure_server = configure_server
        self._callers = callers or GrpcCallers()

    def connect(self, address: str) -> GrpcChannel:
        return GrpcChannel(address, self._channel_credentials)

    def serve(self, address: str) -> GrpcServer:
        return GrpcServer(address, self._server_credentials, self._configure_server, self._callers)
