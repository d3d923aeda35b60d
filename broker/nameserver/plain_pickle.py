"""PySyncObj's module ``pickle``, in place of its own: reads plain data and addresses of name servers, and never runs code.

Has to be imported before PySyncObj.  Owns, too, that the import of PySyncObj changes nothing in this process: its own ``pickle`` changes
the standard library's, and its ``win_inet_pton`` replaces ``socket.inet_ntop`` by a function for Windows on every system.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import ModuleType
from typing import IO, Any

PROTOCOL = 5  # bytes and sets of older protocols are calls of functions
ALLOWED = {("broker.nameserver.bounded_transport", "FollowedNode")}  # in snapshots


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}: expected plain data")
        return super().find_class(module, name)


def load(file: IO[bytes]) -> Any:
    return PlainUnpickler(file).load()


def loads(data: bytes) -> Any:
    return load(io.BytesIO(data))


def dump(value: object, file: IO[bytes], protocol: int | None = None) -> None:
    pickle.dump(value, file, PROTOCOL)


def dumps(value: object, protocol: int | None = None) -> bytes:
    return pickle.dumps(value, PROTOCOL)


def to_bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode()


def _take_the_place() -> None:
    if sys.modules.get("pysyncobj.pickle", sys.modules[__name__]) is not sys.modules[__name__]:
        raise ImportError("PySyncObj was imported before broker.nameserver.plain_pickle")
    sys.modules["pysyncobj.pickle"] = sys.modules[__name__]
    sys.modules.setdefault("pysyncobj.win_inet_pton", ModuleType("pysyncobj.win_inet_pton"))


_take_the_place()
