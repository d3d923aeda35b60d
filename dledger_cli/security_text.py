"""What commands print of a change to users and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger_cli.output import note, report

if TYPE_CHECKING:
    from dledger_client.admin.security import SecurityChange


def show_change(change: SecurityChange, *done: str) -> None:
    """The lines ``done``, or JSON; then which replica groups have not confirmed it."""
    report({"version": change.version, "waiting": list(change.waiting)}, *done)
    if change.waiting:
        note(f"replica groups that have not confirmed it yet: {', '.join(change.waiting)}; they apply it as soon as they can")
