"""One value in a small JSON file of a data folder, such as ``lives.json``.

Owns reading, checking and writing such a file.  It is replaced as a whole, so that a crash leaves the old or the new one; what cannot be
read or decoded is damage.  What damage means is up to the owner of the file: some refuse to start, some begin with an empty value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dledger.runtime.env import Disk, is_unreadable, read_file
from dledger_wire import strict_json
from dledger_wire.errors import DataDirectoryError

T = TypeVar("T")


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """A file at ``path``.  ``decode`` takes the parsed JSON and raises ValueError, KeyError or TypeError for what is not a value.

    ``advice``: the consequence of a damaged file and what to do, for the error.  ``indent``: of files that operators read.
    """

    path: str
    decode: Callable[[Any], T]
    encode: Callable[[T], object]
    advice: str = ""
    indent: int | None = None

    async def read(self, disk: Disk) -> T | None:
        """None without the file.  DataDirectoryError when it is damaged."""
        try:
            return self.decode(strict_json.parse(await read_file(disk, self.path)))
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_unreadable(error):
                raise
            why = str(error)
        except KeyError as error:
            why = f"no {error.args[0]} in it"
        except (ValueError, TypeError, AttributeError) as error:
            why = str(error)
        where = disk.local_path(self.path)
        raise DataDirectoryError(f"{where} is damaged ({why}): {self.advice}" if self.advice else f"{where} is damaged: {why}")

    def content(self, value: T) -> bytes:
        """What the file holds for ``value``."""
        return json.dumps(self.encode(value), indent=self.indent).encode() + b"\n"

    async def write(self, disk: Disk, value: T) -> None:
        """Durable when this returns."""
        await disk.write_atomic(self.path, self.content(value))
