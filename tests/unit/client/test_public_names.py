"""What ``dledger_client`` and ``dledger_client.aio`` export: complete, documented, nothing private."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import dledger_client
import dledger_client.aio
import dledger_wire.errors
from dledger_client import errors, types
from dledger_client.lazy import CLIENTS

FACES = (dledger_client, dledger_client.aio)


def public(face: ModuleType) -> list[str]:
    """``__all__``, which is made when it is asked for."""
    names: list[str] = face.__all__
    return names


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_exports_are_complete_and_public(face: ModuleType) -> None:
    assert len(face.__all__) == len(set(face.__all__))
    assert not [name for name in face.__all__ if name.startswith("_") or not hasattr(face, name)]
    assert [name for name in dir(face) if not name.startswith("__")] == face.__all__


def test_both_faces_have_the_same_names() -> None:
    assert public(dledger_client) == public(dledger_client.aio)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_type_checkers_see_what_is_exported(face: ModuleType) -> None:
    """They read the imports that do not run; the names that are loaded late have to be the same."""
    checked = next(node for node in ast.parse(inspect.getsource(face)).body if isinstance(node, ast.If))
    imports = [each for each in checked.body if isinstance(each, ast.ImportFrom)]
    clients = {(each.module, name.name) for each in imports for name in each.names if name.name not in ("*", "errors")}
    folder = "dledger_client.aio" if face is dledger_client.aio else "dledger_client.sync"
    assert clients == {(f"{folder}.{module}", name) for name, module in CLIENTS.items()}
    assert [each.module for each in imports if each.names[0].name == "*"] == ["dledger_client.types", "dledger_wire.errors"]


def test_the_list_of_errors_is_complete() -> None:
    every = {
        name
        for name, value in vars(dledger_wire.errors).items()
        if isinstance(value, type) and issubclass(value, dledger_wire.errors.DledgerError)
    }
    assert set(public(errors)) == every
    drawn = errors.__doc__ or ""
    assert not [name for name in every if name not in drawn], "errors that the module's picture lacks"


@pytest.mark.parametrize("name", sorted({*public(errors), *public(types), *public(dledger_client)}))
def test_what_is_exported_is_documented(name: str) -> None:
    for face in FACES:
        value = getattr(face, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{face.__name__}.{name} has no docstring"


def _methods(kind: type) -> Iterator[Any]:
    for name, member in inspect.getmembers(kind):
        found = member.fget if isinstance(member, property) else member
        if (not name.startswith("_") or name == "__init__") and inspect.isfunction(found):
            yield inspect.unwrap(found)


def _named(hint: Any) -> Iterator[Any]:
    """The classes in a type: in unions, containers, callables."""
    if inspect.isclass(hint) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from [each for nested in part for each in _named(nested)] if isinstance(part, list) else _named(part)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_type_in_a_public_signature_is_exported(face: ModuleType) -> None:
    missing: set[str] = set()
    for name in face.__all__:
        kind = getattr(face, name)
        if not inspect.isclass(kind):
            continue
        of_users = inspect.isclass(kind) and kind.__module__.startswith(("dledger_client.aio", "dledger_client.sync"))
        for function in _methods(kind) if of_users and name != "Transaction" else ():
            for hint in get_type_hints(function).values():
                for found in _named(hint):
                    if found.__module__.startswith("dledger") and getattr(face, found.__name__, None) is not found:
                        missing.add(f"{name}.{function.__name__}: {found.__module__}.{found.__name__}")
    assert not missing, "\n".join(sorted(missing))
