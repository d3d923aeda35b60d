"""Messages that consumer groups consume one by one, as replicated state: any number of consumers share a queue.

Owns config/popLeases.json.  Of each queue that a group consumes so there are two offsets, and between them blocks of messages:

    offset < floor               done: this is the group's committed offset, so lag and positions are as those of other groups
    floor <= offset < end        in its block; a block that there is not is done
    end <= offset                nothing was decided yet

A message is leased until a moment, and free from then on.  Its lease is the place in the log of the command that granted it: a receipt
(offset and lease) counts while the message is not done and was not leased again, however long ago its time ended.  What is free is decided
by the time of the command, which never goes back: on every replica the same.

The state of a queue is dropped when the group's position is reset, when the topic is deleted, and when a session locks the queue: then
receipts do not count any more, and what was not done comes again.  A commit of the group moves the floor as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from store.commands.command import JsonObject, OffsetRun
from store.commands.pop import AcknowledgeMessages, ChangeInvisible, Granted, LeaseMessages, MarkDeadLetters, Receipts
from store.state.json_pieces import encode
from store.state.pop_block import BLOCK, DONE, Block
from store.state.row_table import RowTable
from store.state.state_machine import CommandContext, CommandHandlers

MAX_IN_FLIGHT = 1 << 20  # messages from the floor of a queue to its end
DAMAGED_MS = 30_000  # until a message that could not be read is looked at again

GroupQueue = tuple[str, str, int]  # consumer group, topic, queue id
Offsets = npt.NDArray[np.int64]
Span = list[int]  # [floor, end]
_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.uint16)


class Positions(Protocol):
    """Positions of groups: ``ConsumerOffsets``."""

    def known_position(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def has_begun(self, group: str, topic: str) -> bool: ...

    def advance(self, group: str, topic: str, queue_id: int, offset: int, at_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Free:
    """Messages that may be leased, rising: how often each was delivered, and its newest lease."""

    offsets: Offsets
    attempts: npt.NDArray[np.uint16]
    leases: Offsets


@dataclass(frozen=True, slots=True)
class Heads:
    """The first messages of their message groups: those that may be leased, all groups, and when the next of these firsts is free."""

    free: Free
    groups: set[int]
    next_ms: int | None


@dataclass(slots=True)
class Delivered:
    """Of the messages that were delivered and are not done: how many are leased now, how many are free to be delivered again, how often one
    was delivered at most, and when the first of them was first, in milliseconds since 1970; 0 when there are none."""

    in_flight: int = 0
    again: int = 0
    attempts: int = 0
    first_ms: int = 0

    def add(self, other: Delivered) -> None:
        self.in_flight += other.in_flight
        self.again += other.again
        self.attempts = max(self.attempts, other.attempts)
        self.first_ms = min(filter(None, (self.first_ms, other.first_ms)), default=0)


class Pop:
    """Implements ``StateMachineSection``; ``locked`` returns the lock epoch of (group, topic, queue), 0 for none."""

    file_name = "popLeases.json"

    def __init__(self, positions: Positions, locked: Callable[[str, str, int], int]) -> None:
        self._positions, self._locked = positions, locked
        self._spans: RowTable[GroupQueue, Span] = RowTable(list, _encoded_span)
        self._blocks: RowTable[tuple[GroupQueue, int], Block] = RowTable(Block.copy, _encoded_block)

    # What there is

    def __iter__(self) -> Iterator[GroupQueue]:
        """Every queue that a group consumes so."""
        return iter(self._spans)

    def span(self, queue: GroupQueue) -> tuple[int, int] | None:
        """Floor and end of a queue; None where the group has not begun."""
        position = self._position(queue)
        if position is None:
            return None
        floor, end = self._spans.get(queue) or (position, position)
        return max(floor, position), max(end, position)

    def earliest_ms(self, queue: GroupQueue) -> int | None:
        """When the first of the messages that are not done is free; None when all are done."""
        earliest = min((block.earliest for _, block in self._blocks_of(queue)), default=DONE)
        return None if earliest == DONE else earliest

    def free(self, queue: GroupQueue, now_ms: int, most: int) -> Free:
        """The first messages that may be leased again, up to ``most``."""
        found: list[tuple[Offsets, Block]] = []
        for first, block in self._blocks_of(queue):
            if most > 0 and block.earliest <= now_ms:
                places = np.flatnonzero(block.due <= now_ms)[:most]
                most -= len(places)
                found.append((first + places, block))
        return _picked(found)

    def left(self, queue: GroupQueue) -> int:
        """How many messages between floor and end are not done."""
        return sum(block.left for _, block in self._blocks_of(queue))

    def is_begun(self, queue: GroupQueue) -> bool:
        """Whether the group consumes the queue so."""
        return self._spans.get(queue) is not None

    def delivered(self, queue: GroupQueue, now_ms: int) -> Iterator[Delivered]:
        """What consumers have, block by block: the caller adds up, and lets others work in between."""
        for _, block in self._blocks_of(queue):
            places = np.flatnonzero(block.attempts)  # of messages that are done it is 0
            if len(places):
                again = int(np.count_nonzero(block.due[places] <= now_ms))
                first_ms = int(block.first_s[places].min()) * 1000
                yield Delivered(len(places) - again, again, int(block.attempts[places].max()), first_ms)

    def heads(self, queue: GroupQueue, now_ms: int) -> Heads:
        """The first message of each message group, of those that are not done."""
        found = [(first + np.flatnonzero(block.due != DONE), block) for first, block in self._blocks_of(queue)]
        if not found:
            return Heads(_picked(found), set(), None)
        groups = np.concatenate([_groups(block, offsets % BLOCK) for offsets, block in found])
        kept, firsts = np.unique(groups, return_index=True)
        heads_at = np.concatenate([offsets for offsets, _ in found])[firsts]
        due = np.concatenate([block.due[offsets % BLOCK] for offsets, block in found])[firsts]
        free = heads_at[due <= now_ms]
        later = due[due > now_ms]
        heads = [(offsets[np.isin(offsets, free)], block) for offsets, block in found]
        return Heads(_picked(heads), set(kept.tolist()), int(later.min()) if len(later) else None)

    def current(self, queue: GroupQueue, offsets: Offsets, leases: Offsets) -> npt.NDArray[np.bool_]:
        """Which of these receipts count now."""
        span, counted = self.span(queue), np.zeros(len(offsets), np.bool_)
        for number, at in _by_block(offsets):
            block = self._blocks.get((queue, number))
            if block is not None and span is not None:
                counted[at] = _valid(block, offsets[at] - number * BLOCK, leases[at]) & (offsets[at] >= span[0])
        return counted

    def attempts(self, queue: GroupQueue, offset: int) -> int:
        """How often a message that is not done was delivered."""
        block = self._blocks.get((queue, offset // BLOCK))
        return 0 if block is None else int(block.attempts[offset % BLOCK])

    def _position(self, queue: GroupQueue) -> int | None:
        position = self._positions.known_position(*queue)
        return 0 if position is None and self._positions.has_begun(*queue[:2]) else position

    def _blocks_of(self, queue: GroupQueue) -> Iterator[tuple[int, Block]]:
        """The blocks of a queue, each with the offset of its first place; what a commit of the group has passed is out."""
        span, known = self.span(queue), self._spans.get(queue)
        if span is None or known is None:
            return
        floor, end = span
        for number in range(floor // BLOCK, -(-end // BLOCK)):
            block = self._blocks.get((queue, number))
            if block is None:
                continue
            if number * BLOCK < floor and known[0] < floor:  # no command has followed the commit yet
                block = block.copy()
                block.finish(np.arange(floor - number * BLOCK))
            yield number * BLOCK, block

    # Commands

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(LeaseMessages, self._lease)
        handlers.on(AcknowledgeMessages, self._acknowledge)
        handlers.on(ChangeInvisible, self._change)
        handlers.on(MarkDeadLetters, self._acknowledge)

    def _lease(self, command: LeaseMessages, context: CommandContext) -> Granted:
        queue = (command.group, command.topic, command.queue_id)
        if self._locked(*queue) or not self._follow(queue) or self._spans.change(queue, _no_span)[1] != command.begin:
            return Granted(context.pos, 0, *_NOTHING)  # the state was dropped, or a commit moved on, since the master chose
        until_ms = context.at_ms + command.invisible_ms
        self._spans.change(queue, _no_span)[1] = command.end
        self._set_new(queue, command)
        granted: list[tuple[Offsets, Block]] = []
        for first, block, places in self._free_of(queue, sorted(command.new + command.again), context.at_ms):
            block.lease(places, until_ms, context.pos, context.at_ms)
            granted.append((first + places, block))
        for _, block, places in self._free_of(queue, command.damaged, context.at_ms):
            block.wait(places, context.at_ms + DAMAGED_MS)
        found = _picked(granted)
        for first, _, places in self._free_of(queue, command.skipped, context.at_ms):
            self._finish(queue, first // BLOCK, places)
        self._raise_floor(queue, context.at_ms, command.low)
        return Granted(context.pos, until_ms, found.offsets, found.attempts)

    def _set_new(self, queue: GroupQueue, command: LeaseMessages) -> None:
        """Make those messages free that nothing was decided about before, and that are not done."""
        runs = sorted((*command.new, *command.waiting))
        offsets, groups = _offsets_of(runs), np.array(command.message_groups, np.uint32)
        for number, at in _by_block(offsets):
            block = self._blocks.change((queue, number), Block)
            block.wait(offsets[at] - number * BLOCK, 0)
            if len(groups):
                block.set_groups(offsets[at] - number * BLOCK, groups[at])
        damaged = _offsets_of([run for run in command.damaged if run[0] >= command.begin])
        for number, at in _by_block(damaged):
            self._blocks.change((queue, number), Block).wait(damaged[at] - number * BLOCK, 0)

    def _free_of(self, queue: GroupQueue, runs: Sequence[OffsetRun], now_ms: int) -> Iterator[tuple[int, Block, Offsets]]:
        """Those messages of the runs that may be leased: the first offset of their block, the block to be changed, and the places."""
        offsets = _offsets_of(runs)
        for number, at in _by_block(offsets):
            places, known = offsets[at] - number * BLOCK, self._blocks.get((queue, number))
            if known is not None and len(free := places[known.due[places] <= now_ms]):
                yield number * BLOCK, self._blocks.change((queue, number), Block), free

    def _acknowledge(self, command: AcknowledgeMessages | MarkDeadLetters, context: CommandContext) -> tuple[bool, ...]:
        queue = (command.group, command.topic, command.queue_id)
        result = self._with_receipts(queue, command.receipts, partial(self._finish, queue))
        self._raise_floor(queue, context.at_ms)
        return result

    def _change(self, command: ChangeInvisible, context: CommandContext) -> tuple[bool, ...]:
        queue = (command.group, command.topic, command.queue_id)

        def change(number: int, places: Offsets) -> None:
            block = self._blocks.change((queue, number), Block)
            if command.uncounted:
                block.uncount(places)
            block.wait(places, context.at_ms + command.invisible_ms)

        return self._with_receipts(queue, command.receipts, change)

    def _with_receipts(self, queue: GroupQueue, receipts: Sequence[Receipts], change: Callable[[int, Offsets], None]) -> tuple[bool, ...]:
        """Call ``change`` with number and places of each block that has messages whose receipts count; which do."""
        offsets = _offsets_of([(first, end) for first, end, _ in receipts])
        leases = np.repeat(np.array([lease for *_, lease in receipts], np.int64), [end - first for first, end, _ in receipts])
        if self._follow(queue):
            counted = self.current(queue, offsets, leases)
            offsets = offsets[counted]
            for number, at in _by_block(offsets):
                change(number, offsets[at] - number * BLOCK)
            return tuple(counted.tolist())
        return (False,) * len(offsets)

    def _finish(self, queue: GroupQueue, number: int, places: Offsets) -> None:
        block = self._blocks.change((queue, number), Block)
        block.finish(places)
        if not block.left:
            self._blocks.pop((queue, number))

    def _follow(self, queue: GroupQueue) -> bool:
        """Have the span begin at the group's position, which commits move; whether the group has one."""
        position = self._position(queue)
        if position is None:
            return False
        if self._spans.get(queue) is None:
            self._spans.change(queue, lambda: [position, position])
        self._set_floor(queue, position)
        return True

    def _raise_floor(self, queue: GroupQueue, at_ms: int, low: int = 0) -> None:
        """Let the floor be the first message that is not done, at ``low`` or behind, and make it the group's position."""
        span = self._spans.get(queue)
        if span is None:
            return
        floor, end = max(span[0], low), max(span[1], low)
        while floor < end:
            block, place = self._blocks.get((queue, floor // BLOCK)), floor % BLOCK
            left = [] if block is None else np.flatnonzero(block.due[place:] != DONE)[:1].tolist()
            if left:
                floor += left[0]
                break
            floor = min(end, floor - place + BLOCK)
        self._set_floor(queue, floor)
        if floor != self._positions.known_position(*queue):
            self._positions.advance(*queue, floor, at_ms)

    def _set_floor(self, queue: GroupQueue, floor: int) -> None:
        span = self._spans.get(queue) or [0, 0]
        if floor <= span[0]:
            return
        for number in range(span[0] // BLOCK, min(floor // BLOCK, -(-span[1] // BLOCK))):
            self._blocks.pop((queue, number))
        if self._blocks.get((queue, floor // BLOCK)) is not None:
            self._finish(queue, floor // BLOCK, np.arange(floor % BLOCK))
        self._spans.change(queue, _no_span)[:] = floor, max(span[1], floor)

    # What drops it

    def drop(self, group: str, topic: str, queue_id: int) -> None:
        """The group begins again at its position, and receipts of before do not count."""
        queue = (group, topic, queue_id)
        span = self._spans.get(queue)
        if span is not None:
            for number in range(span[0] // BLOCK, -(-span[1] // BLOCK)):
                self._blocks.pop((queue, number))
            self._spans.pop(queue)

    def forget_topic(self, topic: str) -> None:
        for queue in [queue for queue in self._spans if queue[1] == topic]:
            self.drop(*queue)

    # Snapshots

    def dump(self) -> JsonObject:
        spans = {_name(queue): list(span) for queue, span in self._spans.items()}
        return {"spanTable": spans, "blockTable": {_block_name(key): block.rows() for key, block in self._blocks.items()}}

    def capture(self) -> JsonObject:
        return {"spanTable": self._spans.capture(), "blockTable": self._blocks.capture()}

    def load(self, data: JsonObject) -> None:
        self._spans.load((_queue(name), [floor, end]) for name, (floor, end) in data["spanTable"].items())
        rows = ((name.rpartition("@"), rows) for name, rows in data["blockTable"].items())
        self._blocks.load(((_queue(name), int(number)), Block.of_rows(found)) for (name, _, number), found in rows)


def _no_span() -> Span:
    return [0, 0]


def _offsets_of(runs: Sequence[OffsetRun]) -> Offsets:
    return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in runs] or [np.zeros(0, np.int64)])


def _by_block(offsets: Offsets) -> Iterator[tuple[int, slice]]:
    """Neighbours of one block each time: its number, and where they are among ``offsets``."""
    numbers = offsets // BLOCK
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(offsets)] if len(offsets) else [0]
    for first, end in pairwise(edges):
        yield int(numbers[first]), slice(first, end)


def _valid(block: Block, places: Offsets, leases: Offsets) -> npt.NDArray[np.bool_]:
    """Whether messages were last leased so and are not done; a message that was never leased has no receipt."""
    result: npt.NDArray[np.bool_] = (block.leases[places] == leases) & (leases > 0) & (block.due[places] != DONE)
    return result


def _picked(found: Sequence[tuple[Offsets, Block]]) -> Free:
    """These messages of blocks, with what the blocks say of them."""
    if not found:
        return Free(*_NOTHING, np.zeros(0, np.int64))
    return Free(
        np.concatenate([offsets for offsets, _ in found]),
        np.concatenate([block.attempts[offsets % BLOCK] for offsets, block in found]),
        np.concatenate([block.leases[offsets % BLOCK] for offsets, block in found]),
    )


def _groups(block: Block, places: Offsets) -> npt.NDArray[np.uint32]:
    return np.zeros(len(places), np.uint32) if block.groups is None else block.groups[places]


def _name(queue: GroupQueue) -> str:
    group, topic, queue_id = queue
    return f"{topic}@{group}@{queue_id}"


def _queue(name: str) -> GroupQueue:
    topic, group, queue_id = name.split("@")
    return group, topic, int(queue_id)


def _block_name(key: tuple[GroupQueue, int]) -> str:
    return f"{_name(key[0])}@{key[1]}"


def _encoded_span(queue: GroupQueue, span: Span) -> bytes:
    return encode({_name(queue): span})[1:-1]


def _encoded_block(key: tuple[GroupQueue, int], block: Block) -> bytes:
    return encode({_block_name(key): block.rows()})[1:-1]
