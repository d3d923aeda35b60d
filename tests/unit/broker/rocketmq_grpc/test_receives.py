"""How long a receive of RocketMQ's gRPC clients waits for a message."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from broker.rocketmq_grpc._pb.service_pb2 import ReceiveMessageRequest
from broker.rocketmq_grpc.receives import poll_ms


def test_an_answer_comes_before_the_client_gives_up() -> None:
    asked = ReceiveMessageRequest(long_polling_timeout=Duration(seconds=10))
    assert [poll_ms(asked, left_s) for left_s in (13.0, 5.0, 0.2)] == [10_000, 4_500, 0]
    asked.long_polling_timeout.seconds = 30
    assert poll_ms(asked, 33.0) == 20_000


def test_a_client_that_does_not_say_how_long_to_poll_gets_an_answer_well_before_its_deadline() -> None:
    """Versions up to 5.0.3 wait for what a receive may take and for a whole call; their tests want an answer between the two."""
    assert [poll_ms(ReceiveMessageRequest(), left_s) for left_s in (33.0, 20.0, 10.0, 1.0)] == [20_000, 18_500, 8_500, 0]
