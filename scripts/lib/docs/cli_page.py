"""Reference page of the command line, made from the command tree itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import typer

from dledger_cli.help_page import examples, long_name, record, usage

HEAD = """\
# Command line

This page is generated from the commands; `dledger COMMAND --help` prints the same.

Exit codes: 0 success, 1 an operating error (one line on stderr), 2 wrong usage (always text), 130 interrupted.
With `--json` each error is one object on a line of stderr, `{"error": {"type": "TopicNotFoundError", "message": "..."}}`: `type` is the
class of the Python client where there is one. Remarks and warnings on stderr stay text.
`dledger --verbose COMMAND` prints the traceback of an error. `dledger --context NAME COMMAND` takes cluster and user from a file, see
[Secure a cluster](../guides/operate/secure.md#identify-yourself).

## Common options

Most commands take these options. The page names them only, and calls `--user` to `--tls-key` *login*.

| option | meaning |
|---|---|
"""
COMMON = ("timeout", "as_json")
LOGIN = ("`--user`", "`--password-file`", "`--tls-ca`", "`--tls-cert`", "`--tls-key`")
DEFAULT_TIMEOUT_S = 30.0


def page(app: typer.Typer) -> str:
    """The whole page, as Markdown."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("dledger", [], resilient_parsing=True)
    create = root.get_command(context, "topic").get_command(context, "create")
    common = [param for param in create.params if _is_common(create, param)]
    known = {param.help for param in common}
    parts = [HEAD + _rows(_record(param, context) for param in common)]
    parts += [_section(path, command, context, known) for path, command in _walk(root, context, "dledger")]
    return "\n".join(parts)


def _walk(group: Any, context: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from _walk(command, context, f"{path} {name}")


def _is_common(command: Any, param: Any) -> bool:
    return param.name in command.connection or param.name in COMMON


def _section(path: str, command: Any, context: Any, known: Collection[str]) -> str:
    """``known``: what the common options mean; an option of such a name that means something else stands with the command's own."""
    text = f"## {path}\n\n{_prose(command.help)}\n"
    if hasattr(command, "list_commands"):
        return text
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    shared = [param for param in params if _is_common(command, param) and param.help in known]
    own = [param for param in params if param not in shared]
    arguments = [usage(param) for param in own if param.param_type_name == "argument"]
    text += f"\n```\n{' '.join([path, '[OPTIONS]', *arguments])}\n```\n"
    if own:
        text += "\n| argument or option | meaning |\n|---|---|\n" + _rows(_record(param, context) for param in own)
    if shared:
        text += f"\nCommon options: {_named(shared, len(known))}.\n"
    if lines := examples().get(path.removeprefix("dledger ")):
        shown = "\n".join(lines)
        text += f"\n{'Examples' if len(lines) > 1 else 'Example'}:\n\n```\n{shown}\n```\n"
    return text


def _named(shared: Sequence[Any], known: int) -> str:
    """The common options of a command in a few words."""
    timeouts = [
        f"`--timeout` {param.default:g} s by default" for param in shared if param.name == "timeout" and param.default != DEFAULT_TIMEOUT_S
    ]
    names = [f"`{long_name(param)}`" for param in shared]
    if len(shared) == known:
        return "; ".join(["all", *timeouts])
    if set(names) >= set(LOGIN):
        names = [*(name for name in names if name not in LOGIN), "login"]
    return "; ".join([", ".join(names), *timeouts])


def _record(param: Any, context: Any) -> tuple[str, str]:
    name, meaning = record(param, context)
    return name, _prose(meaning)


def _rows(rows: Iterable[tuple[str, str]]) -> str:
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
