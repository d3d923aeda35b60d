"""What a caller may do: the one place where services ask.

Owns the decision for every kind of principal; that for users comes from the replicated users and rules.  Decisions are remembered until
these change, so that a stream asks for each of its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar

from dledger_wire.errors import PermissionDeniedError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, group_of_topic, is_system_topic
from dledger_wire.security.principal import Kind, Principal
from store.commands.security import Action, Resource
from store.state.security import SecurityState

MAX_REMEMBERED = 20_000
MAX_REMEMBERED_NAME = 255

CLUSTER_NAME = "*"
CALLER_ADDRESS: ContextVar[str] = ContextVar("caller_address", default="")  # of the call or stream that is served, for the audit log

Question = tuple[Principal, Action, Resource, str]


def resource_of(topic: str) -> tuple[Resource, str]:
    """What rights on a topic are rights on: retries and dead letters belong to their group, topics of the system to the cluster."""
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return Resource.GROUP, group_of_topic(topic)
    return (Resource.CLUSTER, CLUSTER_NAME) if is_system_topic(topic) else (Resource.TOPIC, topic)


class AccessControl:
    """The rights of callers in one process.  Implements ``broker.context.Access``.

    ``state`` gives users and rules as they are now; None: there are no users, and every caller may do everything.

    ``anonymous``: while users are introduced, callers without credentials may do everything but administer the cluster: what
    administrators alone may do is refused to them from the start.
    """

    def __init__(self, state: Callable[[], SecurityState] | None, administrators: Collection[str] = (), *, anonymous: bool = False) -> None:
        self._state = state
        self._administrators = frozenset(administrators)
        self._anonymous = anonymous
        self._remembered: dict[Question, bool] = {}
        self._version = -1
        self._listeners: dict[object, Callable[[], object]] = {}
        self.refusals: Mapping[str, int] = {}  # since the start, by reason
        self.denied: Callable[[Principal, Action, Resource, str], object] = lambda *_: None

    def may(self, principal: Principal, action: Action, resource: Resource, name: str) -> bool:
        """Whether ``principal`` may do ``action`` with the resource of this name."""
        if self._state is None:
            return True
        state = self._state()
        if self._version != state.version or len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
            self._version = state.version
        if len(name) > MAX_REMEMBERED_NAME:  # no name of ours: many of these would fill the memory
            return self._decide(state, principal, action, resource, name)
        question = (principal, action, resource, name)
        known = self._remembered.get(question)
        if known is None:
            known = self._remembered[question] = self._decide(state, principal, action, resource, name)
        return known

    def require(self, principal: Principal, action: Action, resource: Resource, name: str) -> None:
        """PermissionDeniedError unless ``principal`` may."""
        if not self.may(principal, action, resource, name):
            self.denied(principal, action, resource, name)
            place = "the cluster" if resource is Resource.CLUSTER else f"{resource} {name}"
            text = f"{principal} may not {action} {place}"
            raise PermissionDeniedError(text, user=principal.name, action=action.value, resource=resource.value, name=name)

    def on_change(self, listener: Callable[[], object]) -> Callable[[], object]:
        """Call ``listener`` after every change of users and rules, until what is returned is called."""
        mark = object()
        self._listeners[mark] = listener
        return lambda: self._listeners.pop(mark, None)

    def users_changed(self) -> None:
        """Users or rules are others now."""
        for listener in list(self._listeners.values()):
            listener()

    def may_topic(self, principal: Principal, action: Action, topic: str) -> bool:
        """As ``may``, for a topic of whatever kind."""
        return self.may(principal, action, *resource_of(topic))

    def require_topic(self, principal: Principal, action: Action, topic: str) -> None:
        """As ``require``, for a topic of whatever kind."""
        self.require(principal, action, *resource_of(topic))

    def require_producer(self, principal: Principal, name: str, owner: str) -> None:
        """PermissionDeniedError unless ``principal`` may send under a producer id with this ``name`` or, without one, of this ``owner``."""
        if name:
            self.require(principal, Action.WRITE, Resource.PRODUCER, name)
        elif owner and owner != principal.name and self._state is not None:
            self.denied(principal, Action.WRITE, Resource.PRODUCER, "")
            text = f"{principal} may not write as a producer of another user"
            raise PermissionDeniedError(text, user=principal.name, action="write", resource="producer", name="")

    def require_somewhere(self, principal: Principal, action: Action, resource: Resource) -> None:
        """PermissionDeniedError when ``principal`` may do ``action`` with no resource of the type."""
        if self._state is None:
            return
        state, name = self._state(), principal.name
        is_user = principal.kind is Kind.USER and (name in self._administrators or state.user(name) is not None)
        if not is_user or not (name in self._administrators or state.allowed_somewhere(name, action, resource)):
            self.denied(principal, action, resource, "")
            text = f"{principal} may not {action} any {resource}"
            raise PermissionDeniedError(text, user=name, action=action.value, resource=resource.value, name="")

    def seen_groups(self, principal: Principal, groups: Iterable[str]) -> list[str]:
        """Those groups that ``principal`` may know of."""
        return [group for group in groups if self.may(principal, Action.DESCRIBE, Resource.GROUP, group)]

    def _decide(self, state: SecurityState, principal: Principal, action: Action, resource: Resource, name: str) -> bool:
        if principal.is_cluster:
            # What members do among each other has rows of its own in ``permissions.py``.  A certificate of the cluster makes no
            # administrator of a node that was removed, of a spare node, or of a thief.
            return action is Action.DESCRIBE
        if principal.kind is not Kind.USER:
            return self._anonymous and not (resource is Resource.CLUSTER and action is Action.ADMINISTER)
        if principal.name in self._administrators:
            return True
        known = state.user(principal.name) is not None
        return known and state.allowed(principal.name, action, resource, name)
