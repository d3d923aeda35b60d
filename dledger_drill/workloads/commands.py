"""What a workload process is told on its stdin: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dledger_wire.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Command:
    """One of: a round begins; everything ends."""

    round: int | None = None
    finish: bool = False

    def encode(self) -> bytes:
        fields = {"round": self.round, "finish": self.finish or None}
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode() + b"\n"


def parse_command(line: bytes) -> Command:
    """Raises InvalidArgumentError for anything else."""
    try:
        return Command(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"command {line!r}: expected round or finish: {error}") from error
