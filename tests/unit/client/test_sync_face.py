"""The synchronous clients: generated from the asyncio ones, with full signatures and the same docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import dledger_client
from dledger_client import aio
from dledger_client.lazy import CLIENTS

CLASSES = [name for name in CLIENTS if getattr(dledger_client, name) is not getattr(aio, name)]
# Of the synchronous face only, or with other parameters there.
DIFFERENT = {("Producer", "flush"), ("Transaction", "__init__"), ("TransactionProducer", "flush")}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if name == "__init__" or not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_both_faces_have_the_same_methods_and_parameters(name: str) -> None:
    ours, theirs = public(getattr(dledger_client, name)), public(getattr(aio, name))
    assert set(ours) >= set(theirs)
    for method, value in ours.items():
        if method in theirs and inspect.isfunction(value) and (name, method) not in DIFFERENT:
            mine, original = inspect.signature(value).parameters, inspect.signature(theirs[method]).parameters
            assert [str(each) for each in mine.values()] == [str(each) for each in original.values()], f"{name}.{method}"


@pytest.mark.parametrize("face", [dledger_client, aio], ids=lambda face: face.__name__)
def test_no_signature_takes_anything(face: Any) -> None:
    for name in CLASSES:
        for method, value in public(getattr(face, name)).items():
            if inspect.isfunction(value):
                for each in inspect.signature(value).parameters.values():
                    anything = each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and each.annotation in ("Any", Any, each.empty)
                    assert not anything, f"{name}.{method}: {each}"


@pytest.mark.parametrize("name", CLASSES)
def test_docstrings_of_the_synchronous_face_are_about_threads(name: str) -> None:
    kind = getattr(dledger_client, name)
    for method, value in {"": kind, **public(kind)}.items():
        text = inspect.getdoc(value) or ""
        assert not [word for word in ("await ", "async with", "async for", "asyncio", ".aio") if word in text], f"{name}.{method}"
