"""Which typed error a caller gets for what the core refused.  Owns the table."""

from __future__ import annotations

from dledger.core.effects import RefusedReason
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, NotReadyError, ReadOnlyError

REFUSALS: dict[RefusedReason, type[DledgerError]] = {
    RefusedReason.TRANSFERRING: BusyError,
    RefusedReason.BUSY: BusyError,
    RefusedReason.STORAGE: ReadOnlyError,
    RefusedReason.CHANGE_IN_PROGRESS: BusyError,
    RefusedReason.NOT_READY: NotReadyError,
    RefusedReason.UNKNOWN_TARGET: InvalidArgumentError,
    RefusedReason.INVALID_CHANGE: InvalidArgumentError,
    RefusedReason.NOT_CAUGHT_UP: NotReadyError,
}
