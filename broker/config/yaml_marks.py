"""The line of each setting in a cluster file.

Owns reading YAML twice over one text: as data and as a tree with line marks.  Knows nothing of what settings mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from dledger_wire.errors import ConfigError

Location = Sequence[str | int]

MAX_NESTING, MAX_ALIASES = 100, 30
_BRACKET = re.compile(r"[\[\]{}]")
_ALIAS = re.compile(r"(?:^|[\s,\[{:-])\*[A-Za-z0-9_-]+", re.MULTILINE)

# What PyYAML raises for a value that is none of its tag: ``!!float ''``, ``!!timestamp soon``, ``!!int`` of too many digits.
_BAD_VALUE = (ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError)


def location_text(location: Location) -> str:
    """``("groups", 0, "nodes")`` -> ``groups[0].nodes``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a cluster file."""

    location: tuple[str | int, ...]
    text: str


class MarkedYaml:
    """A YAML text as plain data (``data``) and the line of each part."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        _check_cost(text, file)
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self.data: object = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise ConfigError(f"{file}:{line}: not valid YAML: {what}") from error
        except (yaml.YAMLError, RecursionError, *_BAD_VALUE) as error:
            line = _line_of_bad_value(text) if isinstance(error, _BAD_VALUE) else 1
            raise ConfigError(f"{file}:{line}: not valid YAML: {_reason(error)}") from error

    def line(self, location: Location) -> int:
        """The line of the setting at ``location``, or of the nearest thing around it that exists."""
        node: yaml.Node | None = self._root
        line = node.start_mark.line + 1 if node else 1
        for part in location:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line

    def repeated_keys(self) -> list[Problem]:
        """YAML lets a later key silently win over an earlier one; here that is a mistake."""
        problems: list[Problem] = []
        _find_repeated(self._root, (), (), problems)
        return problems

    def error(self, problems: Sequence[Problem]) -> ConfigError:
        """All problems as one error, a line each, in the order of the file."""
        lines = sorted({(self.line(p.location), f"{location_text(p.location) or 'file'}: {p.text}") for p in problems})
        return ConfigError("\n".join(f"{self.file}:{number}: {text}" for number, text in lines))


def _check_cost(text: str, file: str) -> None:
    """Refuse what PyYAML would take minutes for: deep nesting takes it the square of the depth, aliases of aliases multiply."""
    depth = 0
    for found in _BRACKET.finditer(text):
        depth = max(0, depth + (1 if found[0] in "[{" else -1))
        if depth > MAX_NESTING:
            line = text.count("\n", 0, found.start()) + 1
            raise ConfigError(f"{file}:{line}: not valid YAML: more than {MAX_NESTING} nested brackets")
    aliases = len(_ALIAS.findall(text))
    if aliases > MAX_ALIASES:
        raise ConfigError(f"{file}:1: not valid YAML: {aliases} aliases; expected at most {MAX_ALIASES}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "a number of too many digits" if "integer string conversion" in text else text


def _line_of_bad_value(text: str) -> int:
    """The line of the first value that looks like a number or a date and is none; 1 when there is no such."""
    loader = yaml.SafeLoader(text)
    try:
        waiting = [loader.get_single_node()]
        while waiting:
            node = waiting.pop()
            if isinstance(node, yaml.MappingNode):
                waiting += [part for pair in reversed(node.value) for part in reversed(pair)]
            elif isinstance(node, yaml.SequenceNode):
                waiting += reversed(node.value)
            elif node is not None:
                try:
                    loader.construct_object(node)
                except _BAD_VALUE:
                    return int(node.start_mark.line) + 1
    except yaml.YAMLError:
        pass
    finally:
        loader.dispose()
    return 1


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        value = node.value[part]
        return value.start_mark.line + 1, value
    return None


def _find_repeated(node: yaml.Node | None, location: tuple[str | int, ...], around: tuple[yaml.Node, ...], problems: list[Problem]) -> None:
    if node is None or any(node is outer for outer in around):  # an alias may point at what contains it
        return
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            here = (*location, str(key.value))
            if str(key.value) in seen:
                problems.append(Problem(here, f"given twice, on lines {seen[str(key.value)]} and {key.start_mark.line + 1}"))
            seen.setdefault(str(key.value), key.start_mark.line + 1)
            _find_repeated(value, here, (*around, node), problems)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _find_repeated(value, (*location, number), (*around, node), problems)
