"""Why a leader came, in words: one sentence for a person, a kind and a cause for programs.

Owns the texts.  The cause comes from the core; the node's own start adds what its data folder says of the run before.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.causes import Cause, LeaderLoss
from dledger.core.effects import RoleChanged

ELECTION, TRANSFER, START, FOLLOWED = "election", "transfer", "start", "followed"
HELD_MS = 100  # a shorter wait for a disk is no reason to lose a leader
OWN_DISK = "own_disk"  # the cause where this node's own disk kept it from what the others said
_HANDED_OVER = {
    Cause.TRANSFER: "it was asked to",
    Cause.PREFERRED: "the new leader has a higher priority",
    Cause.SPREAD: "its host led more replica groups than others",
    Cause.STOPPING: "it was being stopped",
    Cause.REMOVED: "it is no member of the group any more",
    Cause.CLOCK: "its clock is off from the group's majority",
    Cause.CERTIFICATE: "its certificate has expired",
    Cause.DISK_FULL: "its disk is full",
    Cause.DISK_LOW: "its disk has too little room for new messages",
    Cause.DISK_SLOW: "its disk took longer than an election timeout for a write",
    Cause.STORAGE_FAILED: "writing to its disk failed",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """``kind`` ``followed``: this node only learned of the new leader."""

    kind: str
    cause: str
    reason: str


def explained(event: RoleChanged, own: str, *, last_run_broken: bool, disk_held_ms: float = 0.0) -> Explained:
    """Why ``event.leader`` leads now, as ``own`` knows it.

    ``last_run_broken``: this node's last run was not stopped in order.  ``disk_held_ms``: how long it read no messages of late, since it
    waited for its own disk.
    """
    loss = event.loss
    if loss is None:
        return Explained(FOLLOWED, "", f"{own} follows {event.leader}")
    leads = event.leader == own
    if loss.cause in (Cause.SILENT, Cause.NOT_CONFIRMED) and disk_held_ms >= max(HELD_MS, event.leaderless_ms / 2):
        lost = f"{own} lost leader {loss.leader or 'the leader'}" if loss.leader != own else f"{own} stepped down"
        why = f"{lost}: a write took {disk_held_ms / 1000:.1f} s on its own disk, and {own} read no messages meanwhile"
        return Explained(ELECTION if leads or loss.leader == own else FOLLOWED, OWN_DISK, why)
    why = _why(loss, own, event.leaderless_ms, last_run_broken=last_run_broken)
    led_before = loss.leader == own
    if loss.cause is Cause.START:
        reason = f"{why}; the voters elected it" if leads else f"{why}; it found {event.leader} leading"
        return Explained(START if leads else FOLLOWED, loss.cause.value, reason)
    kind = TRANSFER if loss.cause.is_handed_over else ELECTION
    return Explained(kind if leads or led_before else FOLLOWED, loss.cause.value, why)


def _why(loss: LeaderLoss, own: str, leaderless_ms: int, *, last_run_broken: bool) -> str:
    before, after_s = loss.leader or "the leader", f"{leaderless_ms / 1000:.1f} s"
    if loss.cause is Cause.START:
        broken = " (its last run was not stopped in order: it was killed, or its machine ended)" if last_run_broken else ""
        return f"{own} started {after_s} before{broken} and knew no leader since"
    if loss.cause is Cause.SILENT:
        return f"{own} heard nothing of leader {before} for {after_s}: it was stopped or paused, or the network does not carry its messages"
    if loss.cause is Cause.LINK_LOST:
        return f"{own}'s connection with leader {before} broke: its process or its machine ended, or the network between"
    if loss.cause is Cause.NOT_CONFIRMED:
        return f"{before} stepped down: no majority of the voters answered it for an election timeout"
    if loss.cause is Cause.HIGHER_TERM:
        return f"{own} followed {before}, and saw a newer term from {loss.source or 'another node'}"
    if loss.cause is Cause.LEFT_BEHIND:
        return f"{before} stepped down: a voter has the log of a later lineage, which a recovery or a restore began"
    if loss.cause is Cause.REQUESTED:
        return f"an election was asked for at {own}"
    return f"leader {before} handed over: {_HANDED_OVER[loss.cause]}"
