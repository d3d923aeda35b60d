"""Backup, restore, checks and recovery of clusters, for programs: what ``dledger backup`` and its like print, with typed errors.

``take`` and ``restore`` backups, ``verify_backups`` and ``verify`` the files of a stopped node, ``dump`` one of them, and ``recover`` a
replica group that lost its majority.  Nothing is imported before it is named: a program that dumps a file needs no client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger_offline.backup.check import verify_backups
    from dledger_offline.backup.cluster import ClusterBackup, take
    from dledger_offline.backup.restore import Restored, RestoredNode, restore
    from dledger_offline.files.check import verify
    from dledger_offline.files.dump import dump
    from dledger_offline.recovery.only_voter import Survivor, look_at, recover

_PLACES = {
    "verify_backups": "backup.check",
    "ClusterBackup": "backup.cluster",
    "take": "backup.cluster",
    "Restored": "backup.restore",
    "RestoredNode": "backup.restore",
    "restore": "backup.restore",
    "verify": "files.check",
    "dump": "files.dump",
    "Survivor": "recovery.only_voter",
    "look_at": "recovery.only_voter",
    "recover": "recovery.only_voter",
}

__all__ = [
    "ClusterBackup",
    "Restored",
    "RestoredNode",
    "Survivor",
    "dump",
    "look_at",
    "recover",
    "restore",
    "take",
    "verify",
    "verify_backups",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
