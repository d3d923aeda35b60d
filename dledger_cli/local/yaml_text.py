"""Changes of a YAML file as text: an item of a list added or taken out, a value of a mapping set.  All other lines stay as they are.

Owns where an item stands and how its neighbours are written.  Every change is checked: the new text has to read as the wanted data.
"""

from __future__ import annotations

from typing import Any

import yaml

from dledger_wire.errors import ConfigError

WIDTH = 140


def with_items(text: str, key: str, items: list[Any]) -> str:
    """``items`` behind the last one of the list ``key``."""
    data, found = yaml.safe_load(text), _value_of(yaml.compose(text), key)
    wanted = data | {key: [*data[key], *items]}
    if found.flow_style:
        at, written = found.end_mark.index - 1, _flow(items)[1:-1]
        return _checked([f"{text[:at]}{comma}{written}{text[at:]}" for comma in (", ", "")], wanted)  # there may be one behind the last
    at, indent = _behind(text, found.value[-1]), " " * found.start_mark.column
    lines = yaml.safe_dump(items, sort_keys=False, default_flow_style=None, width=WIDTH).splitlines()
    before = text[:at] if text[:at].endswith("\n") else f"{text[:at]}\n"
    return _checked([before + "".join(f"{indent}{line}\n" for line in lines) + text[at:]], wanted)


def without_item(text: str, key: str, number: int) -> str:
    """The list ``key`` without the item of that number, from 0 on."""
    data, found = yaml.safe_load(text), _value_of(yaml.compose(text), key)
    wanted = data | {key: [item for position, item in enumerate(data[key]) if position != number]}
    item, later = found.value[number], found.value[number + 1 :]
    if not found.flow_style:
        begin, end = text.rfind("\n", 0, item.start_mark.index) + 1, _behind(text, item)
    elif later:
        begin, end = item.start_mark.index, later[0].start_mark.index
    else:
        begin, end = item.start_mark.index, item.end_mark.index
        before = found.value[number - 1].end_mark.index if number else begin
        begin = begin if "#" in text[before:begin] else before  # else the comma in front of it
    return _checked([text[:begin] + text[end:]], wanted)


def with_value(text: str, section: str, key: str, value: str | int) -> str:
    """The mapping ``section`` with that value under ``key``."""
    data, found = yaml.safe_load(text), _value_of(yaml.compose(text), section)
    wanted = data | {section: data[section] | {key: value}}
    written, begin = _flow(value), found.start_mark.index
    if key in data[section]:
        old = _value_of(found, key)
        changed = text[: old.start_mark.index] + written + text[old.end_mark.index :]
    elif found.flow_style:
        changed = f"{text[: begin + 1]}{key}: {written}{', ' if found.value else ''}{text[begin + 1 :]}"
    else:
        changed = f"{text[:begin]}{key}: {written}\n{' ' * found.start_mark.column}{text[begin:]}"
    return _checked([changed], wanted)


def _value_of(mapping: yaml.Node | None, key: str) -> Any:
    """The node of the value, whatever its kind."""
    pairs = mapping.value if isinstance(mapping, yaml.MappingNode) else []
    return next(value for name, value in pairs if name.value == key)


def _behind(text: str, node: yaml.Node) -> int:
    """Where the line behind the last word of a block begins.  PyYAML's end of a block is behind the comments that follow it, too."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = text.find("\n", max(node.start_mark.index, node.end_mark.index - 1))
    return len(text) if end < 0 else end + 1


def _flow(value: Any) -> str:
    """On one line, to stand in a block or in another flow value."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()


def _checked(texts: list[str], wanted: Any) -> str:
    """The first of them that reads as ``wanted``."""
    for text in texts:
        try:
            if yaml.safe_load(text) == wanted:
                return text
        except yaml.YAMLError:
            continue
    raise ConfigError("this command cannot edit the cluster file as it is written; edit it by hand, then dledger cluster apply")
