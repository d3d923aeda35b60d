"""Everything public is documented: each class and method, each of its parameters; examples are Python."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, get_type_hints

import pytest

import dledger_client
import dledger_client.aio

FACES = (dledger_client, dledger_client.aio)
PARSER = doctest.DocTestParser()
# Examples of pure functions and classes, which are executed; the others need a cluster.
EXECUTED = ("averagely", "averagely_by_circle", "by_config", "by_machine_room", "consistent_hash", "machine_room_nearby", "Message")


def documented() -> Iterator[tuple[str, Any]]:
    """(name, object): every exported class and function, and every public method and property of the classes."""
    for face in FACES:
        for name in sorted(set(face.__all__) - {"errors"}):
            value = getattr(face, name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue  # a type alias
            yield f"{face.__name__}.{name}", value
            if inspect.isclass(value):
                for member, found in inspect.getmembers(value):
                    if issubclass(value, BaseException) and member not in vars(value):
                        continue  # of the base class
                    ours = (getattr(found, "__module__", None) or "builtins").startswith(("dledger", "pyspark_dledger"))
                    if not member.startswith("_") and (isinstance(found, property) or (inspect.isroutine(found) and ours)):
                        yield f"{face.__name__}.{name}.{member}", found


DOCUMENTED = sorted(dict(documented()).items())


def parameters(value: Any) -> set[str]:
    """What a caller may give; of an exported class its constructor's parameters, or its fields."""
    if inspect.isclass(value) and re.search(r"Made by|Clients make it", value.__doc__ or ""):
        return set()  # not constructed by users
    if isinstance(value, property | cached_property) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return set()
    if inspect.isclass(value) and hasattr(value, "__dataclass_fields__"):
        return {name for name in value.__dataclass_fields__ if not name.startswith("_")}
    if inspect.isclass(value) and hasattr(value, "_member_map_"):
        return set(value._member_map_)
    if inspect.isclass(value) and hasattr(value, "__total__"):  # a TypedDict; RocketMQ's names are in the reference of settings
        bases = [getattr(dledger_client, name) for name in re.findall(r"with those of ``(\w+)``", value.__doc__ or "")]
        return {name for name in get_type_hints(value) if name.islower()}.difference(*map(get_type_hints, bases))
    return set(inspect.signature(value).parameters) - {"self"}


@pytest.mark.parametrize(("name", "value"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_what_is_public_is_documented(name: str, value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    sections = "\n".join(re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE))
    described = set(re.findall(r"^    (\w+): ", sections, re.MULTILINE))
    assert parameters(value) <= described, f"{name} does not describe {sorted(parameters(value) - described)}"
    if inspect.isfunction(value):
        assert described <= parameters(value), f"{name} describes {sorted(described - parameters(value))}, which it does not have"


@pytest.mark.parametrize(("name", "value"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_examples_are_python(name: str, value: Any) -> None:
    for example in PARSER.get_examples(inspect.getdoc(value) or ""):
        compile(example.source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.isfunction(value) and name.startswith("dledger_client."):
        assert re.search(r"^Examples?:$", inspect.getdoc(value) or "", re.MULTILINE), f"{name} has no example"


@pytest.mark.parametrize("name", EXECUTED)
def test_examples_that_need_no_cluster_give_what_they_say(name: str) -> None:
    value = getattr(dledger_client, name)
    test = PARSER.get_doctest(inspect.getdoc(value) or "", vars(dledger_client).copy(), name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
