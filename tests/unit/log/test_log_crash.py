"""Power lost or process killed between any two steps: what was reported durable is there, promises are kept, the start is idempotent."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.types import EntryId, HardState, NodeId
from dledger.log.config import LogConfig
from dledger.log.log import Log
from dledger.log.report import RecoveryReport
from tests.unit.log.crash_disk import CrashDisk, PowerLost
from tests.unit.log.log_rig import add, body_of, config, everything, findings, run

Entry = tuple[int, int]  # index, term; the body follows from them


@dataclass
class Model:
    """What the log was told and what it answered."""

    entries: list[Entry] = field(default_factory=list)
    ever: set[Entry] = field(default_factory=set)
    # Entries reported durable and not asked to be cut since.
    durable: list[Entry] = field(default_factory=list)
    promises: list[HardState] = field(default_factory=lambda: [HardState()])
    durable_promise: int = 0
    term: int = 0


async def live(log: Log, model: Model, draw: random.Random) -> None:
    """One life of a node: appends, cuts, promises, flushes, trims at random, until the power goes or it stops."""
    for _ in range(draw.randint(1, 12)):
        action = draw.choice(["append", "append", "append", "cut", "promise", "flush", "flush", "now", "now", "lazy", "trim", "beside"])
        if action == "append":
            if model.promises[-1].term < model.term or model.term == 0:
                model.term += 1
                promise(log, model)
            for entry in add(log, draw.randint(1, 12), model.term):
                model.entries.append((entry.index, entry.term))
                model.ever.add((entry.index, entry.term))
        elif action == "promise":
            model.term += 1
            promise(log, model)
        elif action == "cut" and log.last.index > log.first_index:
            from_index = draw.randint(max(log.first_index, log.last.index - 20), log.last.index)
            if from_index > log.first_index and log._places.chain_crc(from_index - 1) is None:
                continue  # deeper than verify_bytes: never uncommitted
            model.term += 1
            promise(log, model)
            log.cut(from_index)
            model.entries = [entry for entry in model.entries if entry[0] < from_index]
            model.durable = [entry for entry in model.durable if entry[0] < from_index]
        elif action == "trim":
            await log.trim(draw.randint(0, log.last.index))
        elif action == "now":
            flush_now(log, model)
        elif action in ("flush", "lazy"):
            await flush(log, model, sync=action == "flush")
        elif action == "beside":
            await flush_beside_a_promise(log, model, draw.randint(0, 6))


async def flush(log: Log, model: Model, *, sync: bool) -> None:
    promised = len(model.promises) - 1
    done = await log.flush(sync=sync)
    model.durable_promise = promised
    assert log.saved == model.promises[promised]
    if sync:
        assert done.last.index == log.last.index
        model.durable = list(model.entries)


async def flush_beside_a_promise(log: Log, model: Model, steps: int) -> None:
    flushing = asyncio.ensure_future(log.flush())
    for _ in range(steps):
        await asyncio.sleep(0)
    if flushing.done():
        await flushing  # the power may have gone
    model.term += 1
    promise(log, model)
    promised = len(model.promises) - 1
    results = await asyncio.gather(flushing, log.keep_promise(), return_exceptions=True)
    if any(isinstance(result, BaseException) for result in results):
        raise PowerLost
    model.durable_promise, model.durable = promised, list(model.entries)
    assert log.saved == model.promises[promised]


def flush_now(log: Log, model: Model) -> None:
    done = log.flush_now()
    if done is not None:
        assert done.complete
        assert done.last == log.last == log.durable
        model.durable = list(model.entries)


def promise(log: Log, model: Model) -> None:
    state = HardState(model.term, draw_vote(model.term))
    log.save_hard_state(state.term, state.vote)
    model.promises.append(state)


def draw_vote(term: int) -> NodeId | None:
    return None if term % 3 == 0 else NodeId(f"n{term % 5}")


async def check(log: Log, report: RecoveryReport, model: Model) -> None:
    assert not report.damaged, report.summary()
    found = [(entry.index, entry.term) for entry in await everything(log)]
    for entry in await everything(log):
        assert entry.body_bytes() == body_of(entry.index, entry.term)
    kept = [entry for entry in model.durable if entry[0] >= log.first_index]
    assert found[: len(kept)] == kept, "what was reported durable is there"
    assert set(found) <= model.ever, "nothing is invented"
    assert log.saved in model.promises[model.durable_promise :], "a promise is never taken back"
    assert log.durable == log.last


def adopt(log: Log, model: Model, found: list[Entry]) -> None:
    """After a start the log is what was found, all of it durable."""
    model.entries = list(found)
    model.durable = list(found)
    at = max(number for number, state in enumerate(model.promises) if state == log.saved)
    model.promises = [HardState(), *model.promises[1 : at + 1]] if at else [HardState()]
    model.durable_promise = at
    model.term = max(model.term, log.saved.term, log.last.term)


async def lives(seed: int, base: LogConfig) -> None:
    draw = random.Random(seed)
    disk = CrashDisk(writes_now=True)
    model = Model()
    for _ in range(draw.randint(1, 4)):
        log, report = await Log.open(disk, base)
        await check(log, report, model)
        adopt(log, model, [(entry.index, entry.term) for entry in await everything(log)])
        disk.crash_after = disk.operations + draw.choice([draw.randint(0, 30), draw.randint(0, 300), 10_000])
        try:
            await live(log, model, draw)
            if draw.random() < 0.3:
                await log.close()
        except PowerLost:
            pass
        log._closed = True  # the process is gone; its timers must not start anything
        disk.crash_after = None
        disk = disk.after_power_loss(draw) if draw.random() < 0.7 else disk.after_kill()
        disk = await starts_that_crash(disk, base, draw)
    log, report = await Log.open(disk, base)
    await check(log, report, model)
    await log.close()
    assert [finding for finding in await findings(disk) if finding.is_damage] == []


async def starts_that_crash(disk: CrashDisk, base: LogConfig, draw: random.Random) -> CrashDisk:
    """The power goes during the start too; in the end the same log is found."""
    for _ in range(draw.randint(0, 2)):
        disk.crash_after = disk.operations + draw.randint(0, 40)
        try:
            log, _report = await Log.open(disk, base)
            log._closed = True
        except PowerLost:
            pass
        disk.crash_after = None
        disk = disk.after_power_loss(draw)
    one, first = await Log.open(disk.after_kill(), base)
    again = disk.after_kill()
    await (await Log.open(again, base))[0].close()
    two, second = await Log.open(again, base)
    assert (one.last, one.end_pos, one.chain_crc, one.terms()) == (two.last, two.end_pos, two.chain_crc, two.terms())
    assert second.is_clean
    assert second.units_rewritten == 0
    assert bool(first.damaged) == bool(second.damaged)
    await one.close()
    await two.close()
    return disk


CONFIGS = {
    "strict": config(),
    "lazy units": config(units_sync_delay_ms=100_000),
    "trusting": config(units_sync_delay_ms=100_000, verify_bytes=500),
    "roomy": config(segment_bytes=1 << 16, cache_bytes=1 << 16, piece_bytes=4096),
}


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_lives_of_a_node(name: str, seed: int) -> None:
    run(lambda: lives(seed, CONFIGS[name]))


def test_power_lost_at_every_step_of_a_fixed_life() -> None:
    async def life(disk: CrashDisk, model: Model) -> None:
        log, _report = await Log.open(disk, config())
        for count, cut_last, trim_to in ((15, 0, 0), (20, 6, 0), (9, 18, 8), (30, 1, 14), (3, 25, 0), (8, 2, 20)):
            model.term += 1
            promise(log, model)
            if cut_last:
                from_index = log.last.index + 1 - cut_last
                log.cut(from_index)
                model.entries = [entry for entry in model.entries if entry[0] < from_index]
                model.durable = [entry for entry in model.durable if entry[0] < from_index]
            model.ever |= {(entry.index, entry.term) for entry in add(log, count, model.term)}
            model.entries += [(index, model.term) for index in range(log.last.index + 1 - count, log.last.index + 1)]
            promised = len(model.promises) - 1
            await log.flush()
            model.durable, model.durable_promise = list(model.entries), promised
            await log.trim(trim_to)

    async def scenario() -> None:
        disk = CrashDisk()
        model = Model()
        await life(disk, model)
        assert model.durable
        steps = disk.operations
        done = {(what, path.split("/")[0]) for what, path in disk.log}
        assert {("remove", "commitlog"), ("truncate", "commitlog"), ("write_atomic", "logstart.json"), ("pwrite", "hardstate")} <= done
        for step in range(steps):
            for seed in range(3):
                disk, model = CrashDisk(crash_after=step), Model()
                with pytest.raises(PowerLost):
                    await life(disk, model)
                disk.crash_after = None
                log, report = await Log.open(disk.after_power_loss(random.Random(seed)), config())
                await check(log, report, model)
                await log.close()

    run(scenario)


def test_power_lost_at_every_step_of_writes_that_are_done_at_once() -> None:
    lazy = config(units_sync_delay_ms=100_000)

    async def life(disk: CrashDisk, model: Model) -> int:
        log, _report = await Log.open(disk, lazy)
        at_once = 0
        for number in range(12):
            model.term += number % 5 == 0
            if log.saved.term < model.term:
                promise(log, model)
                promised = len(model.promises) - 1
                await log.flush()
                model.durable_promise = promised
            new = [(entry.index, entry.term) for entry in add(log, 1 + number % 3, model.term)]
            model.ever |= set(new)
            model.entries += new
            if log.flush_now() is None:
                await log.flush()
            else:
                at_once += 1
            model.durable = list(model.entries)
        return at_once

    async def scenario() -> None:
        disk, model = CrashDisk(writes_now=True), Model()
        assert await life(disk, model) >= 6
        for step in range(disk.operations):
            for seed in range(3):
                disk, model = CrashDisk(crash_after=step, writes_now=True), Model()
                with pytest.raises(PowerLost):
                    await life(disk, model)
                disk.crash_after = None
                after = disk.after_power_loss(random.Random(seed)) if seed else disk.after_kill()
                log, report = await Log.open(after, lazy)
                await check(log, report, model)
                await log.close()

    run(scenario)


def test_a_log_left_open_is_found_whole_by_the_next_process() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config())
        log.save_hard_state(1, None)
        add(log, 30)
        await log.flush(sync=False)
        after, report = await Log.open(disk.after_kill(), config())
        assert report.is_clean
        assert after.last == EntryId(30, 1)

    run(scenario)
