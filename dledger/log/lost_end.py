"""A log that ends before what was made from it has lost entries: such files are saved only once the log is on stable storage that far.

A lost file of the log, or a lost folder, may leave a log that is whole in itself, only shorter.  Its node must not vote: what it has lost
may count as stored by a majority.
"""

from __future__ import annotations

from dledger_wire.errors import StorageDamagedError


def check_log_reaches(index: int, last_index: int, path: str) -> None:
    """StorageDamagedError unless the log goes as far as the file at ``path`` says that it was durable."""
    if index > last_index:
        text = f"{path} was made from the log up to entry {index}, but the log ends at entry {last_index}: its files were lost or replaced"
        todo = "put them back, or replace this node as a member (docs/guides/operate/replace-a-node.md)"
        raise StorageDamagedError(f"{text}, so the node must not vote; {todo}", file=path, pos=0)
