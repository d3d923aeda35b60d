"""Docstrings and documents hold nothing that went wrong unseen: pasted code, paths of files that are gone."""

from __future__ import annotations

import re
from collections import Counter

from tests.tidy.source import ROOT, sources, tracked

MIN_CODE_CHARACTERS = 25  # shorter lines, such as ``return None``, may well be quoted
HISTORY = "CHANGELOG.md"


def test_no_line_of_code_stands_in_a_docstring() -> None:
    found: list[str] = []
    for source in sources():
        written = Counter(line.strip() for line in source.text.splitlines())
        # Several methods may describe the same parameter in the same words.
        documented = Counter(line.strip() for _, docstring in source.docstrings for line in docstring.splitlines())
        for start, docstring in source.docstrings:
            for line in map(str.strip, docstring.splitlines()):
                if len(line) >= MIN_CODE_CHARACTERS and written[line] > documented[line]:
                    found.append(f"{source.name}:{start}: {line}")
    assert not found, "\n".join(found)


def test_paths_in_docstrings_and_documents_exist() -> None:
    tops = sorted({path.partition("/")[0] for path in tracked() if "/" in path}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])((?:{'|'.join(map(re.escape, tops))})/[\w./*-]*\w)")
    texts = [(source.name, docstring) for source in sources() for _, docstring in source.docstrings]
    texts += [(path, (ROOT / path).read_text(encoding="utf-8")) for path in tracked() if path.endswith(".md") and path != HISTORY]
    found = [f"{where}: {path}" for where, written in texts for path in pattern.findall(written) if not exists(path)]
    assert not found, "\n".join(found)


def exists(path: str) -> bool:
    """As a file, a folder, a module without its ``.py``, or the beginning of one's name such as ``docs/adr/0010``."""
    if "*" in path:
        return any(ROOT.glob(path))
    return path in tracked() or f"{path}.py" in tracked() or any(known.startswith(f"{path}-") for known in tracked())
