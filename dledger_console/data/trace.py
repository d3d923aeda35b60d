"""What became of one message: itself, every copy of it, the replicas that have them, the groups that have passed them."""

from __future__ import annotations

from dledger_client.aio import ConsumerState, TracedCopy


def replicas_text(copy: TracedCopy) -> str:
    """``n0, n1 hold it; n2: no answer``."""
    by_state: dict[str, list[str]] = {}
    for replica in copy.replicas:
        by_state.setdefault(replica.state, []).append(replica.node_id)
    return "; ".join(f"{', '.join(nodes)}: {state}" for state, nodes in by_state.items())


def consumer_text(consumer: ConsumerState) -> str:
    """What a consumer group did with a copy, in words."""
    if consumer.state == "consumed":
        return "has passed it: processed, sent back or skipped"
    if consumer.state == "sent back":
        return "sent it back: it is delivered again"
    return f"not yet: it is at offset {consumer.committed}"
