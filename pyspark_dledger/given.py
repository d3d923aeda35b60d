"""Options as Spark hands them over, looked up without regard to case, with typed and checked reading.

Owns the one line each mistake gets: option, value, what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger_wire.errors import InvalidArgumentError

# Spark adds these by itself.
_SPARK_OWN = ("path", "paths", "checkpointLocation")


class Given:
    """The options as given; ``known`` are their names, ``aliases`` other names for some of them."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> None:
        names = {name.lower() for name in (*known, *_SPARK_OWN)}
        renamed = {alias.lower(): name.lower() for alias, name in (aliases or {}).items()}
        self._values: dict[str, str] = {}
        for key, value in sorted(options.items()):
            name = renamed.get(key.lower(), key.lower())
            if name not in names:
                raise InvalidArgumentError(f"option {key}: unknown; expected one of {', '.join(known)}")
            if name in self._values:
                raise InvalidArgumentError(f"option {key}: given twice, under two names")
            self._values[name] = value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name.lower(), default)
        if value is None or not value.strip():
            raise InvalidArgumentError(f"option {name}: missing; expected a value")
        return value.strip()

    def optional(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return value.strip() if value is not None and value.strip() else None

    def words(self, name: str) -> tuple[str, ...]:
        """The parts of a list separated by commas, each once; empty when the option is not given."""
        text = self.optional(name)
        return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self.optional(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise InvalidArgumentError(f"option {name}: {value!r}; expected a whole number of at least {least}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.optional(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"option {name}: {value!r}; expected true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, choices[0])
        if value not in choices:
            raise InvalidArgumentError(f"option {name}: {value!r}; expected one of {', '.join(choices)}")
        return value
