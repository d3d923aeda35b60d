"""What a person types for a drill: names of faults, families of them, and workloads.

Owns the spelling: names are separated by commas, a name that is unknown is refused with the nearest ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from dledger_wire.errors import InvalidArgumentError

ALL = "all"


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
