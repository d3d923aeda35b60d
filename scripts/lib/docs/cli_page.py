"""Reference page of the command line, made from the command tree itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import typer

HEAD = """\
# Command line

This page is generated from the commands; `dledger COMMAND --help` prints the same.

Exit codes: 0 success, 1 an operating error (one line on stderr), 2 wrong usage (always text), 130 interrupted.
With `--json` each error is one object on a line of stderr, `{"error": {"type": "TopicNotFoundError", "message": "..."}}`: `type` is the
class of the Python client where there is one. Remarks and warnings on stderr stay text.
`dledger --verbose COMMAND` prints the traceback of an error. `dledger --context NAME COMMAND` takes cluster and user from a file, see
[Secure a cluster](../guides/secure.md#who-you-are).

## Common options

Most commands take these options. The page does not repeat them for each command.

| option | meaning |
|---|---|
"""
COMMON = ("--config", "--bootstrap", "--json", "--timeout")
WHO = "login_"  # parameters of options that say who comes in; some commands have others of the same name
DEFAULT_TIMEOUT_S = 30.0


def page(app: typer.Typer) -> str:
    """The whole page, as Markdown."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("dledger", [], resilient_parsing=True)
    topic = root.get_command(context, "topic")
    create = topic.get_command(context, "create")
    known = {param.help for param in create.params if _has_common_name(param)}
    parts = [HEAD + _rows(_common(create, context))]
    parts += [_section(path, command, context, known) for path, command in _walk(root, context, "dledger")]
    return "\n".join(parts)


def _walk(group: Any, context: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from _walk(command, context, f"{path} {name}")


def _has_common_name(param: Any) -> bool:
    return bool(set(param.opts) & set(COMMON)) or param.name.startswith(WHO)


def _common(command: Any, context: Any) -> list[tuple[str, str]]:
    return [_record(param, context) for param in command.params if _has_common_name(param) if not getattr(param, "hidden", False)]


def _section(path: str, command: Any, context: Any, known: Collection[str]) -> str:
    """``known``: what the common options mean; an option of such a name that means something else stands with the command's own."""
    text = f"## {path}\n\n{_prose(command.help)}\n"
    if hasattr(command, "list_commands"):
        return text
    shared = [param for param in command.params if _has_common_name(param) and not param.required and param.help in known]
    own = [param for param in command.params if param not in shared]
    usage = " ".join([path, *(_usage(param) for param in own if param.param_type_name == "argument"), "[OPTIONS]"])
    text += f"\n```\n{usage}\n```\n"
    rows = [_record(param, context) for param in own if not getattr(param, "hidden", False)]
    if rows:
        text += "\n| argument or option | meaning |\n|---|---|\n" + _rows(rows)
    if shared:
        text += "\nCommon options: " + ", ".join(_common_name(param) for param in shared) + ".\n"
    if command.epilog:
        text += f"\n{_examples(command.epilog)}\n"
    return text


def _common_name(param: Any) -> str:
    long = next(name for name in param.opts if name.startswith("--"))
    if long == "--timeout" and param.default != DEFAULT_TIMEOUT_S:
        return f"`{long}` (default {param.default:g} s)"
    return f"`{long}`"


def _usage(param: Any) -> str:
    name = param.name.upper()
    return name if param.required else f"[{name}]"


def _record(param: Any, context: Any) -> tuple[str, str]:
    if param.param_type_name == "argument":
        return param.name.upper(), " ".join(filter(None, [_prose(param.help or ""), "Required." if param.required else ""]))
    name, meaning = param.get_help_record(context)
    return name, _prose(meaning)


def _rows(rows: list[tuple[str, str]]) -> str:
    return "".join(f"| `{_cell(name)}` | {_cell(meaning)} |\n" for name, meaning in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str | None) -> str:
    """Help text as Markdown: paragraphs kept, lines joined, characters that Markdown or HTML would take escaped."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    joined = "\n\n".join(part for part in paragraphs if part)
    for character in "\\<*_[":
        joined = joined.replace(character, f"\\{character}")
    return joined


def _examples(epilog: str) -> str:
    """One command a line; what feeds a pipe stays in front of its command."""
    head, _, rest = " ".join(epilog.split()).partition(": ")
    commands: list[str] = []
    for piece in rest.split(" | "):
        if commands and not commands[-1].rpartition(" | ")[2].startswith("dledger "):
            commands[-1] += f" | {piece}"
        else:
            commands.append(piece)
    return f"{head}:\n\n```\n" + "\n".join(commands) + "\n```"
