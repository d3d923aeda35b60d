"""Options and variables for the cluster to ask and the caller's credentials: one that is given and empty is wrong usage.

A script whose own variable is unset (``--bootstrap "$BROKERS"``) would ask another cluster otherwise, or ask as another user.
"""

from __future__ import annotations

import os

import typer


def not_empty(value: str | None) -> str | None:
    """Callback of an option whose default is None."""
    if value is not None and not value.strip():
        raise typer.BadParameter("the value is empty; expected a value, or omit the option")
    return value


def value_of(name: str) -> str:
    """A variable of the environment; empty when it is not set."""
    value = os.environ.get(name)
    if value is not None and not value.strip():
        raise typer.BadParameter("the variable is set and empty; expected a value, or unset it", param_hint=f"${name}")
    return value or ""
