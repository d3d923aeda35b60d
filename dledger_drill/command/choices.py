"""Names and files that options of a drill give, checked before anything is started.

Owns their errors, one line with the option, what it got and what was expected, and the spelling of names: separated by commas, an unknown
one is refused with the nearest ones.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from dledger_wire.errors import ConfigError, InvalidArgumentError

ALL = "all"


def faults_of(text: str, against: str) -> tuple[str, ...]:
    """The faults that ``text`` names.  Of a cluster in use, those that do it no harm; others are refused when they are named."""
    from dledger_drill.faults.catalogue import CATALOGUE, families, harmless

    possible = tuple(harmless() if against else CATALOGUE)
    if text == ALL:
        return possible
    try:
        names = chosen(text, CATALOGUE, families(), "fault")
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--faults") from None
    refused = [name for name in names if name not in possible]
    if refused:
        text = f"{', '.join(refused[:3])}{' ...' if len(refused) > 3 else ''}: not on a cluster in use; expected {', '.join(possible)}"
        raise typer.BadParameter(text, param_hint="--faults")
    return names


def workloads_of(text: str) -> tuple[str, ...]:
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS, WORKLOADS, check_workloads

    try:
        names = chosen(text, WORKLOADS, {}, "workload") if text else DEFAULT_WORKLOADS
        check_workloads(names)
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--workloads") from None
    return names


def need_tls(faults: Sequence[str]) -> bool:
    from dledger_drill.faults.catalogue import CATALOGUE
    from dledger_drill.plan.model import Need

    return any(Need.TLS in CATALOGUE[name].needs for name in faults)


def settings_in(file: Path | None) -> dict[str, Any]:
    """The blocks of settings that a file has for a private cluster, as a cluster file would have them."""
    from dledger_drill.cluster.settings import settings_of

    if file is None:
        return {}
    try:
        return settings_of(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--config") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file}: byte {error.start} is no UTF-8", param_hint="--config") from None
    except ConfigError as error:
        raise typer.BadParameter(error.message, param_hint="--config") from None


def check_writable(file: Path | None, option: str) -> None:
    """Before the drill, which may take a night."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder}: no such folder", param_hint=option)
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder; expected the name of a file", param_hint=option)
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"{folder}: no file can be written there", param_hint=option)


def chosen(text: str, names: Iterable[str], families: Mapping[str, Sequence[str]], what: str) -> tuple[str, ...]:
    """The names that ``text`` lists, each once and in their order; a family stands for all of its names, ``all`` for everything.

    Raises InvalidArgumentError for what is no name.  ``what`` is its kind, for the error.
    """
    known = list(names)
    found: dict[str, None] = {}
    for part in (part.strip() for part in text.split(",")):
        if part == ALL:
            found |= dict.fromkeys(known)
        elif part in known:
            found[part] = None
        elif part in families:
            found |= dict.fromkeys(families[part])
        else:
            near = difflib.get_close_matches(part, [*known, *families], n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"expected {ALL}, {', '.join([*families] or known)}"
            raise InvalidArgumentError(f"no {what} {part!r}; {hint}")
    return tuple(name for name in known if name in found)
