"""Messages as they were applied, so that a history can still be judged whole when its head was deleted everywhere, and by lineage."""

from __future__ import annotations

from collections.abc import Collection

from dledger.log.entry import RawEntry
from dledger_wire.batches.batch import BatchView
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frames import frame_positions
from store.log_view import entry_records


class Archive:
    """Bodies by (topic, queue) and offset, each with the index of its entry."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, int], dict[int, tuple[int, bytes]]] = {}

    def add(self, entry: RawEntry) -> None:
        """Take in the messages of an entry that is applied somewhere for the first time."""
        for _pos, record in entry_records(entry):
            if isinstance(record, BatchView):
                bodies = self._bodies.setdefault((record.topic, record.queue_id), {})
                for number, position in enumerate(frame_positions(record.sizes).tolist()):
                    bodies[record.first_queue_offset + number] = entry.index, decode_frame(record.frames, position).body

    def before(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        """The messages of a queue before ``offset``, in order."""
        bodies = self._bodies.get((topic, queue_id), {})
        return [(number, bodies[number][1]) for number in range(offset) if number in bodies]

    def has(self, topic: str, queue_id: int, offset: int, body: bytes) -> bool:
        """Whether this message was applied at that offset."""
        return self._bodies.get((topic, queue_id), {}).get(offset, (0, b""))[1] == body

    def of(self, indexes: Collection[int]) -> Archive:
        """The messages of these entries."""
        kept = Archive()
        for queue, bodies in self._bodies.items():
            kept._bodies[queue] = {offset: found for offset, found in bodies.items() if found[0] in indexes}
        return kept
