"""Deliberate faults of who may do what: rights that outlive their removal, and users that are not known where they should be."""

from __future__ import annotations

import pytest

from broker.security import access, admission, replicas, user_watch
from dledger_wire.security.principal import Principal
from store.commands.security import Action, Resource
from store.state.security import SecurityState


def decisions_outlive_rules(patch: pytest.MonkeyPatch) -> None:
    """A process remembers what it decided, whatever changed since."""
    decide, remembered = access.AccessControl._decide, dict[object, bool]()

    def first(self: access.AccessControl, state: SecurityState, who: Principal, action: Action, kind: Resource, name: str) -> bool:
        return remembered.setdefault((id(self), who, action, kind, name), decide(self, state, who, action, kind, name))

    patch.setattr(access.AccessControl, "_decide", first)


def everything_allowed(patch: pytest.MonkeyPatch) -> None:
    """Whoever is let in may do everything."""
    patch.setattr(access.AccessControl, "_decide", lambda *_asked: True)


def copies_not_written(patch: pytest.MonkeyPatch) -> None:
    """Users and rules of the other replica groups are in no log."""

    async def nothing(_self: user_watch.SecurityCopies) -> None:
        return None

    patch.setattr(user_watch.SecurityCopies, "_copy", nothing)


def unknown_yet_is_unknown(patch: pytest.MonkeyPatch) -> None:
    """Who has not heard of the users takes them for nobody."""
    patch.setattr(admission.ClusterAdmission, "_look_up", lambda self, name: (self._users() or SecurityState()).user(name))


def any_node_replicates(patch: pytest.MonkeyPatch) -> None:
    """Members of other replica groups are members of this one."""

    async def fine(*_asked: object) -> None:
        return None

    patch.setattr(replicas.ReplicaCheck, "check", fine)
