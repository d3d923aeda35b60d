"""The options of gRPC channels and servers.  Needs no gRPC."""

from __future__ import annotations

from typing import TypeAlias

from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES

Options: TypeAlias = list[tuple[str, int | str]]

SERVED_BYTES = 16 << 20  # of one message of a stock gRPC client; larger ones come by our protocol

# Large frames and a window of several messages keep 256 KiB - 1 MiB messages moving.
_COMMON: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 4 << 20),
    ("grpc.http2.write_buffer_size", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHANNEL_OPTIONS: Options = [
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # in truth the limit of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: bulk on one channel never waits behind another's
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # retries are ours: only we know what may be sent twice
]
SERVER_OPTIONS: Options = [
    *_COMMON,
    ("grpc.max_receive_message_length", SERVED_BYTES),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 300_000),
]
