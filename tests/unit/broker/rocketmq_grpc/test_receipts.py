"""Receipt handles: read back as they were made, and whatever else comes is refused and harms nothing."""

from __future__ import annotations

import random

import pytest

from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc.receipts import handle_of, receipt_in
from broker.rocketmq_grpc.statuses import StatusError

INCARNATION = "0000000000ABCDEF"
MOST = (1 << 32) - 1, (1 << 64) - 1, (1 << 64) - 1


@pytest.mark.parametrize("numbers", [(0, 0, 0), (3, 17, 42), MOST])
def test_a_handle_is_read_back(numbers: tuple[int, int, int]) -> None:
    incarnation, receipt = receipt_in(handle_of(INCARNATION, *numbers))
    assert (incarnation, receipt.queue_id, receipt.offset, receipt.lease) == (INCARNATION, *numbers)


def test_whatever_else_comes_is_refused() -> None:
    rng, good = random.Random(7), handle_of(INCARNATION, *MOST)
    given = ["", good + "0", good + "\n", good.replace("-", "_"), good.lower(), "-".join(["١" * 16, "0", "0", "0"]), "0" * 1_000_000]
    for _ in range(20_000):
        mutated = list(
            good if rng.random() < 0.5 else handle_of(INCARNATION, rng.randrange(9), rng.randrange(1 << 40), rng.randrange(1 << 64))
        )
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(mutated) + 1)
            mutated[place : place + rng.randrange(2)] = rng.choice(["", "-", "f", "G", "\x00", "é", "٣", "0" * 17])
        given.append("".join(mutated))
    refused = [error for handle in given if (error := refusal(handle)) is not None]
    assert {error.status.code for error in refused} == {pb.INVALID_RECEIPT_HANDLE}
    assert max(len(error.status.message) for error in refused) < 300
    assert len(refused) > 10_000


def refusal(handle: str) -> StatusError | None:
    """Of a handle; what is one stays the same when it is written again."""
    try:
        incarnation, receipt = receipt_in(handle)
    except StatusError as error:
        return error
    assert receipt_in(handle_of(incarnation, receipt.queue_id, receipt.offset, receipt.lease)) == (incarnation, receipt)
    return None
