"""Loads what the client's packages export when it is first used (PEP 562): an import of the package alone loads and changes nothing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

CLIENTS = {
    "Admin": "admin",
    "Consumer": "polled",
    "LogicalQueueReader": "logical_queue",
    "LogicalQueueWriter": "logical_queue",
    "Producer": "producer",
    "PullConsumer": "consumer",
    "PushConsumer": "push",
    "SimpleConsumer": "simple_consumer",
    "Transaction": "transaction",
    "TransactionProducer": "transaction",
}


def exported_by(package: str, clients: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: the clients of the folder ``clients``, errors, types, and modules by their name."""

    def load(name: str) -> Any:
        value = _found(package, clients, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted([*(name for name in vars(sys.modules[package]) if name.startswith("__")), *_names()])


def _found(package: str, clients: str, name: str) -> Any:
    if name == "__all__":
        return _names()
    if name in CLIENTS:
        return getattr(importlib.import_module(f"{clients}.{CLIENTS[name]}"), name)
    if not name.startswith("_"):
        if importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        for module in _exporting():
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _names() -> list[str]:
    return sorted([*CLIENTS, *(name for module in _exporting() for name in module.__all__)])


def _exporting() -> Iterator[Any]:
    for name in ("errors", "types"):
        yield importlib.import_module(f"dledger_client.{name}")
