"""The part of ``Admin`` for users and what they may do.

Each method delegates to ``dledger_client.admin.security`` or ``dledger_client.admin.audit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger_client.admin import audit, security
from dledger_client.admin.audit import AuditLog
from dledger_client.admin.security import AccessDecision, AccessRule, Action, ClusterUser, ResourceType, SecurityChange
from dledger_client.aio.replica_group_admin import ReplicaGroupAdmin


class SecurityAdmin(ReplicaGroupAdmin):
    """Administration of users and rules; use ``Admin``."""

    async def create_user(self, name: str, password: str | None = None) -> SecurityChange:
        """Create a user, without rights.

        The password does not leave this process.

        Args:
            name: Letters, digits and ``. _ @ -``, at most 127.
            password: Its password.  Default: none; the user comes in with a certificate of its name.

        Raises:
            InvalidArgumentError: There is such a user already.
            OutcomeUnknownError: An answer was lost, and there is such a user now, perhaps of before; ``update_user`` makes sure.
            PermissionDeniedError: The caller does not administer the cluster.

        Examples:
            >>> await admin.create_user("billing", "correct horse battery staple")
        """
        return await security.put_user(self._calls, name, password, create=True)

    async def update_user(self, name: str, password: str | None) -> SecurityChange:
        """Give a user another password.  Users may do this for themselves.

        Args:
            name: The user.
            password: The new password; None: only a certificate of its name counts from now on.

        Raises:
            InvalidArgumentError: There is no such user.
            PermissionDeniedError: The caller is somebody else, and does not administer the cluster.

        Examples:
            >>> await admin.update_user("billing", "a new one")
        """
        return await security.put_user(self._calls, name, password, create=False)

    async def delete_user(self, name: str) -> SecurityChange:
        """Delete a user and the rules that name it.  Its connections end.

        Args:
            name: The user.

        Raises:
            InvalidArgumentError: There is no such user.

        Examples:
            >>> await admin.delete_user("billing")
        """
        return await security.delete_user(self._calls, name)

    async def list_users(self, user: str = "") -> list[ClusterUser]:
        """Users by name, with the administrators that the cluster file names.

        Args:
            user: Only this one.  Default: all.

        Examples:
            >>> print([user.name for user in await admin.list_users()])
        """
        return await security.list_users(self._calls, user)

    async def change_rules(self, added: Sequence[AccessRule] = (), removed: Sequence[AccessRule] = ()) -> SecurityChange:
        """Take rules away and add others, at once.  Rules that are there already, or are not there, change nothing.

        Args:
            added: At most 1000 together with ``removed``.
            removed: Exactly as they were added.

        Raises:
            InvalidArgumentError: A rule that means nothing, or for a user that does not exist.

        Examples:
            >>> await admin.change_rules([AccessRule("billing", "allow", "topic", "orders*", "read")])
        """
        return await security.change_rules(self._calls, added, removed)

    async def list_rules(self, user: str = "") -> list[AccessRule]:
        """All rules, in order.

        Args:
            user: Only those that decide on what this user may do, rules for everybody included.  Default: all.

        Examples:
            >>> for rule in await admin.list_rules("billing"):
            ...     print(rule)
        """
        return await security.list_rules(self._calls, user)

    async def check_access(self, user: str, action: Action, resource: ResourceType, name: str) -> AccessDecision:
        """Whether a user may do something, and which rules decide it.

        Args:
            user: The user.
            action: ``read``, ``write``, ``create``, ``describe`` or ``administer``.
            resource: ``topic``, ``group``, ``producer`` or ``cluster``.
            name: Name of the resource; ``*`` for the cluster.

        Examples:
            >>> print((await admin.check_access("billing", "read", "topic", "orders")).allowed)
        """
        return await security.check_access(self._calls, user, action, resource, name)

    async def audit_log(
        self,
        count: int = 100,
        *,
        user: str = "",
        action: str = "",
        denied: bool = False,
        node: str = "",
        after: Mapping[str, int] | None = None,
    ) -> AuditLog:
        """The newest records of administrative actions and refusals, of all nodes and name servers.

        Args:
            count: How many at most.
            user: Only what this user did.  Default: everybody.
            action: Only actions with this text in them.  Default: all.
            denied: Only refusals.
            node: Only what this node or name server wrote, by id or address.  Default: all of them.
            after: Only what came after these ``positions`` of an earlier call.  Default: from the newest backwards.

        Raises:
            PermissionDeniedError: The caller does not administer the cluster.
            InvalidArgumentError: There is no such node.
            DledgerError: None of them has records to show: why the first one that was asked has not.

        Examples:
            >>> for record in (await admin.audit_log(20, denied=True)).records:
            ...     print(record.at, record.user, record.address, record.reason)
        """
        return await audit.audit_log(self._calls, count, user, action, node, after, denied=denied)
