"""What ``dledger up`` advises when it may not see the nodes that it started."""

from __future__ import annotations

import pytest

from dledger_cli.commands.updown import _hint
from dledger_wire.errors import AuthenticationFailedError, DledgerError, PermissionDeniedError


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (AuthenticationFailedError("expected a user with a password", reason="no_credentials"), True),
        (PermissionDeniedError("user a may not describe the cluster"), True),
        (AuthenticationFailedError("its certificate is not trusted: certificate has expired"), False),
        (AuthenticationFailedError("a: wrong name or password", user="a"), False),
    ],
)
def test_another_user_is_named_where_it_helps(error: DledgerError, helps: bool) -> None:
    assert bool(_hint(error)) is helps
