"""All targets by name.  A module of this folder lists its own in ``TARGETS``."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import authentication, batches, log_files, raft_messages, texts

ALL: dict[str, Target] = {
    target.name: target for module in (authentication, batches, log_files, raft_messages, texts) for target in module.TARGETS
}
