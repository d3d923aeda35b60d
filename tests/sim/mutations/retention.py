"""Deliberate faults in deleting the log's head and in catching up by copy, for the table of mutations."""

from __future__ import annotations

from typing import Any

import pytest

import dledger.replica.replica
from dledger.driver import Driver
from dledger.membership.configuration_file import ConfigurationFile
from dledger.node import RaftNode
from dledger.snapshot import install
from dledger.snapshot.plan import SnapshotPlan
from store.durability.persistence import Persistence
from store.queues.queue_trim import QueueTrimmer


def head_deleted_up_to_what_may_be_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftNode, "trim_limit", lambda self: self.log.last.index)
    patch.setattr(Persistence, "save_behind", _reaches)


async def _reaches(_self: Any, index: int) -> int:
    return index


def head_deleted_without_a_snapshot_behind_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Persistence, "save_behind", _reaches)


def head_deleted_without_its_configuration(patch: pytest.MonkeyPatch) -> None:
    async def forgetful(_self: Any) -> int:
        return 1 << 60

    patch.setattr(ConfigurationFile, "write", forgetful)


def queues_do_not_follow(patch: pytest.MonkeyPatch) -> None:
    async def stay(*_: Any) -> None:
        return None

    patch.setattr(QueueTrimmer, "follow", stay)


def copy_without_the_state(patch: pytest.MonkeyPatch) -> None:
    whole = install.installation_of

    def log_only(plan: SnapshotPlan, configuration: str) -> install.Installation:
        installation = whole(plan, configuration)
        installation.files.clear()
        return installation

    patch.setattr(install, "installation_of", log_only)


def copy_taken_whatever_is_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dledger.replica.replica.Replica, "incompatibility", lambda _self, _plan: None)


def log_replaced_without_a_pause(patch: pytest.MonkeyPatch) -> None:
    async def hasty(_self: Driver) -> None:
        return None

    patch.setattr(Driver, "pause", hasty)
