"""The typed error for each reason the core refuses a request.  Owns the table."""

from __future__ import annotations

from dledger.core.effects import RefusedReason
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, NoLiveMajorityError, NotReadyError, ReadOnlyError

_REFUSALS: dict[RefusedReason, type[DledgerError]] = {
    RefusedReason.TRANSFERRING: BusyError,
    RefusedReason.BUSY: BusyError,
    RefusedReason.STORAGE: ReadOnlyError,
    RefusedReason.CHANGE_IN_PROGRESS: BusyError,
    RefusedReason.NOT_READY: NotReadyError,
    RefusedReason.UNKNOWN_TARGET: InvalidArgumentError,
    RefusedReason.INVALID_CHANGE: InvalidArgumentError,
    RefusedReason.NOT_CAUGHT_UP: NotReadyError,
    RefusedReason.NO_LIVE_MAJORITY: NoLiveMajorityError,
}
# Where the reason's name alone does not say what to do.
_TEXTS: dict[RefusedReason, str] = {
    RefusedReason.UNKNOWN_TARGET: "only another voter can take leadership over, no learner; without a name, one that answers",
    RefusedReason.NOT_CAUGHT_UP: "the learner has not caught up yet; dledger status shows how far it is,"
    " dledger member promote --wait SECONDS waits for it",
    RefusedReason.NO_LIVE_MAJORITY: "the group would be left without a majority of voters that answer, for good;"
    " bring the silent ones back or remove those first; nothing was changed",
}


def refusal(reason: RefusedReason) -> DledgerError:
    """The error for a refused request; not for NOT_LEADER, which names the leader."""
    return _REFUSALS[reason]("refused: " + _TEXTS.get(reason, reason.value.replace("_", " ")))
