"""Reports that drills left in a folder: which there are, and one of them.

Owns what a report is: a file of a plain name in that folder and of a bounded size; nothing else of the machine can be read this way.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from pathlib import Path

MAX_REPORTS = 1_000
MAX_BYTES = 32 << 20
HEAD_BYTES = 16 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.html")
_TITLE = re.compile(r"<title>([^<]{1,300})</title>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        name: Of its file.
        title: What it says of itself; its name when it says nothing.
        at_ms: When it was written, milliseconds since 1970.
        size_bytes: Its size.
    """

    name: str
    title: str
    at_ms: int
    size_bytes: int


def list_reports(folder: str) -> list[Report]:
    """The newest reports of a folder, newest first; none when there is no folder."""
    found = []
    try:
        paths = [path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    for path in paths:
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime_ns, path.name, status.st_size))
    newest = sorted(found, key=lambda each: (-each[0], each[1]))[:MAX_REPORTS]
    return [Report(name, _title(folder, name, written, size), written // 1_000_000, size) for written, name, size in newest]


def read_report(folder: str, name: str) -> bytes | None:
    """A report's bytes; None when there is none of this name, or it is too large."""
    if not _NAME.fullmatch(name):
        return None
    body = _read(folder, name, MAX_BYTES + 1)
    return body if body is not None and len(body) <= MAX_BYTES else None


@lru_cache(maxsize=2 * MAX_REPORTS)
def _title(folder: str, name: str, written_ns: int, size_bytes: int) -> str:
    """Read once for each state of a file."""
    head = (_read(folder, name, HEAD_BYTES) or b"").decode("utf-8", "replace")
    found = _TITLE.search(head)
    return " ".join(unescape(found[1]).split()) if found else name


def _read(folder: str, name: str, most: int) -> bytes | None:
    """The start of a regular file; None for anything else, such as a link or a pipe, on which one would wait."""
    try:
        descriptor = os.open(Path(folder) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
