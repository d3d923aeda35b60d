"""Messages as they were applied, so that a history can still be judged whole when its head was deleted everywhere."""

from __future__ import annotations

from dledger.log.entry import RawEntry
from dledger_wire.batches.batch import BatchView
from dledger_wire.frames.frame import decode_frame, frame_positions
from store.log_view import entry_records


class Archive:
    """Bodies by (topic, queue) and offset."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, int], dict[int, bytes]] = {}

    def add(self, entry: RawEntry) -> None:
        """Take in the messages of an entry that is applied somewhere for the first time."""
        for _pos, record in entry_records(entry):
            if isinstance(record, BatchView):
                bodies = self._bodies.setdefault((record.topic, record.queue_id), {})
                for number, position in enumerate(frame_positions(record.sizes).tolist()):
                    bodies[record.first_queue_offset + number] = decode_frame(record.frames, position).body

    def before(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        """The messages of a queue before ``offset``, in order."""
        bodies = self._bodies.get((topic, queue_id), {})
        return [(number, bodies[number]) for number in range(offset) if number in bodies]
