"""Reference page of the events in the logs, made from the servers' own table."""

from __future__ import annotations

from broker.process.log_events import SECTIONS

HEAD = """\
# Events in the logs

This page is generated from the table that the servers log by.

Nodes and name servers log to stderr, or to the file that `--log-file` names: JSON, one object a line; columns where stderr is a terminal.
Every line has `at` (UTC), `level`, `node`, `text` and `logger`; lines of a node have its `group` and, once it is known, the Raft `term`.
Every warning and every error has an `event`, which stays the same over versions: search and alert by it, not by the text.

The same line is written once in 60 seconds, and of lines that differ only in details 20. A summary of repeated lines follows:
`repeated 37 times in 60 s: ...`, with the number as `repeated`.

Each process keeps its newest 2000 lines in memory: `dledger log tail --node n1 --level warning --follow` reads them over the network.
It needs an administrator.

```json
{"at": "2026-11-22T03:00:00.120Z", "level": "error", "group": "g0", "node": "n1", "term": 7,
 "event": "disk_full", "text": "the disk is full: ...", "logger": "dledger.driver"}
```

"""


def page() -> str:
    """The whole page, as Markdown."""
    parts = []
    for title, events in SECTIONS.items():
        rows = "".join(f"| `{event.name}` | {event.meaning} | {event.action} |\n" for event in events)
        parts.append(f"## {title}\n\n| event | meaning | what to do |\n|---|---|---|\n{rows}")
    return HEAD + "\n".join(parts)
