"""Invariants of one core between steps: the safety properties that a single node can check.

Owns the checks only; the simulator calls them after every step, a node may do so in production.
"""

from __future__ import annotations

from dledger.core.state import CoreState
from dledger.core.types import Role
from dledger_wire.check import require


def check_invariants(core: CoreState) -> None:
    """Raise InvariantBrokenError if one is broken."""
    log = core.log
    log.terms.check()
    require(log.before.index <= core.commit <= log.last.index, "commit %d outside %s..%s", core.commit, log.before, log.last)
    require(log.before.index <= log.durable <= log.last.index, "durable %d outside %s..%s", log.durable, log.before, log.last)
    require(core.applied <= core.commit, "applied %d beyond the commit index %d", core.applied, core.commit)
    require(log.last == type(log.last)(log.terms.last_index, log.terms.last_term), "last entry %s miscounted", log.last)
    require(log.last.term <= core.term, "entries of term %d in term %d", log.last.term, core.term)
    memberships = core.memberships
    require(memberships.index <= log.last.index, "membership of entry %d, log ends at %s", memberships.index, log.last)
    _check_role(core)


def _check_role(core: CoreState) -> None:
    role = core.role
    require(not core.confirmed or role is Role.LEADER, "%s is confirmed", role)
    if role is Role.LEADER:
        require(core.vote == core.node_id and core.hard_state_durable, "a leader that voted for %s", core.vote)
        core.replication.check()
    else:
        require(not core.replication.peers, "%s keeps a leader's progress", role)
        require(not core.transfers.pending, "%s transfers leadership", role)
    if role is Role.CANDIDATE:
        require(core.vote == core.node_id, "a candidate that voted for %s", core.vote)
    if role in (Role.CANDIDATE, Role.PRE_CANDIDATE):
        require(core.leader is None, "%s follows %s", role, core.leader)
    if role in (Role.FOLLOWER, Role.LEARNER):
        require(core.leader != core.node_id, "%s follows itself", role)
        require(role is core.memberships.follower_role, "%s although %s", role, core.memberships.current)
