"""What ``dledger_client`` and ``dledger_client.aio`` export: complete, documented, nothing private."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import dledger_client
import dledger_client.aio
import dledger_wire.errors
from dledger_client import errors, types

FACES = (dledger_client, dledger_client.aio)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_exports_are_complete_and_public(face: ModuleType) -> None:
    assert len(face.__all__) == len(set(face.__all__))
    assert not [name for name in face.__all__ if name.startswith("_") or not hasattr(face, name)]
    shown = {name for name, value in vars(face).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert shown == set(face.__all__) - {"errors"}


def test_both_faces_have_the_same_names() -> None:
    assert set(dledger_client.__all__) - {"errors"} == set(dledger_client.aio.__all__)


def test_the_list_of_errors_is_complete() -> None:
    every = {
        name
        for name, value in vars(dledger_wire.errors).items()
        if isinstance(value, type) and issubclass(value, dledger_wire.errors.DledgerError)
    }
    assert set(errors.__all__) == every
    drawn = errors.__doc__ or ""
    assert not [name for name in every if name not in drawn], "errors that the module's picture lacks"


@pytest.mark.parametrize("name", sorted({*errors.__all__, *types.__all__, *dledger_client.__all__} - {"errors"}))
def test_what_is_exported_is_documented(name: str) -> None:
    for face in FACES:
        value = getattr(face, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{face.__name__}.{name} has no docstring"
