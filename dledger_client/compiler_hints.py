"""What modules tell the compiler of a compiled wheel (docs/adr/0035); where they are interpreted it means nothing and needs no package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    Kind = TypeVar("Kind", bound=type)

    def mypyc_attr(**_hints: bool) -> Callable[[Kind], Kind]:
        return lambda kind: kind
