"""The key index against a dictionary: what is found is exactly what the log holds, whatever became of the files in between."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace

import pytest

from dledger.log.report import DamageKind
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.frames.message_id import offset_message_id
from store.commands.topics import DeleteTopic
from store.key_index import indexer as key_index
from store.key_index.index_file import Window, created_ms_of
from store.key_index.index_keys import KeyColumns
from store.key_index.index_writer import OpenIndexFile
from store.key_index.message_query import Answer
from store.offline.verify import verify_store
from tests.unit.log.crash_disk import CrashDisk, CrashFile
from tests.unit.store.store_rig import TINY, StepClock, StoreRig, batch_of, run
from tests.waiting import until

WORDS = [f"k{number}" for number in range(12)]
Model = dict[tuple[str, str], list[bytes]]  # (topic, key or id) -> bodies, oldest first


async def send(rig: StoreRig, draw: random.Random, model: Model) -> None:
    """A batch of messages with random keys, told to the model."""
    topic, count = draw.choice("ab"), draw.choice([1, 1, 2, 5])
    bodies = [draw.randbytes(12) for _ in range(count)]
    keys = [" ".join(draw.choices(WORDS, k=draw.randint(0, 3))) for _ in range(count)]
    unique = [draw.choice(["", f"ID{draw.randrange(1 << 40):X}"]) for _ in range(count)]
    rig.append(rig.store.prepare(batch_of(topic, draw.randrange(2), bodies, keys=keys, unique=unique)))
    for body, words, unique_id in zip(bodies, keys, unique, strict=True):
        for word in {*words.split(), unique_id} - {""}:
            model.setdefault((topic, word), []).append(body)


async def settle(rig: StoreRig) -> None:
    await rig.commit()
    assert rig.store.index is not None
    assert await rig.store.index.caught_up(rig.store.applied_index, 10)


def bodies_of(answer: Answer) -> list[bytes]:
    assert answer.complete
    positions = [found.pos for found in answer.messages]
    assert positions == sorted(positions, reverse=True)
    return [found.frame.body for found in answer.messages]


async def find(rig: StoreRig, topic: str, key: str) -> list[bytes]:
    """What the index finds, in pages of five, oldest first."""
    bodies: list[bytes] = []
    before = 1 << 62
    while before:
        answer = await rig.store.query.by_key(topic, key, Window(before_pos=before), max_results=5)
        bodies += bodies_of(answer)
        before = answer.before_pos
    return bodies[::-1]


async def checked(rig: StoreRig) -> None:
    """Wait until damage in the files was found and mended."""
    assert rig.store.index is not None
    await rig.store.index.scrub()
    await settle(rig)


async def assert_is_model(rig: StoreRig, model: Model, sample: random.Random | None = None) -> None:
    """Every key of the model is found as it says; ``sample`` looks at a few of them."""
    await settle(rig)
    chosen = list(model) if sample is None else sample.sample(list(model), min(8, len(model)))
    for topic, key in chosen:
        bodies = model[topic, key]
        if key.startswith("ID"):
            assert bodies_of(await rig.store.query.by_unique_id(["a", "b"], key, Window())) == bodies
        else:
            assert await find(rig, topic, key) == bodies
    assert await find(rig, "a", "nobody") == []


async def tamper(rig: StoreRig, draw: random.Random) -> CrashDisk:
    """Stop the store in one of the ways there are, and spoil what it left; the disk to start from."""
    disk = rig.disk
    assert isinstance(disk, CrashDisk)
    way = draw.choice(["close", "kill", "power", "remove", "cut", "flip", "marks", "no marks", "foreign"])
    if way == "kill":
        await rig.save_index()
        return disk.after_kill()
    if way == "power":
        await rig.save_index()
        return disk.after_power_loss(draw)
    await rig.close()
    files = [path for path in disk.files if path.startswith("index/2")]
    path = draw.choice(files) if files else ""
    if way == "remove" and path:
        del disk.files[path]
    elif way == "cut" and path:
        del disk.files[path].current[draw.randrange(len(disk.files[path].current)) :]
    elif way == "flip" and path:
        disk.files[path].current[draw.randrange(len(disk.files[path].current))] ^= 1 << draw.randrange(8)
    elif way == "marks":
        disk.files["config/keyIndex.json"].current[draw.randrange(50, 90)] ^= 1
    elif way == "no marks":
        disk.files.pop("config/keyIndex.json", None)
    elif way == "foreign":
        disk.files["index/20231114221320777"] = CrashDisk({"x": b"junk"}).files["x"]
        disk.files["index/README"] = CrashDisk({"x": b"theirs"}).files["x"]
    return disk.after_kill()


@pytest.mark.parametrize("seed", range(16))
def test_finds_what_a_dictionary_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(key_index, "LINGER_S", 0)
    monkeypatch.setattr(key_index, "SCRUB_PAUSE_S", 0)
    monkeypatch.setattr(key_index, "PENDING_BYTES", draw.choice([300, 3000, 1 << 20]))
    settings = replace(TINY, maxHashSlotNum=draw.choice([1, 3, 11, 97]), maxIndexNum=draw.choice([3, 7, 40, 1000]))

    async def scenario() -> None:
        disk, clock, model = CrashDisk(), StepClock(), Model()
        for life in range(5):
            rig = await StoreRig.open(disk, settings, clock=clock)
            if not life:
                await rig.topic("a")
                await rig.topic("b")
            rig.promise()
            await checked(rig)
            await assert_is_model(rig, model, draw)
            for _ in range(draw.randint(0, 12)):
                await send(rig, draw, model)
                if draw.random() < 0.5:
                    await rig.commit()
                if draw.random() < 0.2:
                    await rig.save_index()
            await assert_is_model(rig, model, draw)
            disk = await tamper(rig, draw)
        rig = await StoreRig.open(disk, settings, clock=clock)
        await checked(rig)
        await assert_is_model(rig, model)
        await rig.close()
        damages = [finding for finding in [found async for found in verify_store(rig.disk)] if finding.is_damage]
        assert damages == []
        assert "index/README" not in disk.files or disk.files["index/README"].current == b"theirs"

    run(scenario)


@pytest.mark.parametrize("hurry", ["a question", "many bytes", "the end"])
def test_small_batches_are_added_together_once_somebody_asks_or_they_are_many(hurry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "LINGER_S", 1e6)
    added: list[int] = []

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), TINY, clock=StepClock())
        await rig.topic("a")
        await settle(rig)
        index = rig.store.index
        assert index is not None
        add = index.files.add

        async def noted(keys: KeyColumns) -> None:
            added.append(len(keys))
            await add(keys)

        monkeypatch.setattr(index.files, "add", noted)
        for number in range(5):
            await rig.send(batch_of("a", 0, [b"%d" % number], keys=["all"]))
            for _ in range(10):
                await asyncio.sleep(0)
        assert added == []
        if hurry == "a question":
            assert await find(rig, "a", "all") == [b"%d" % number for number in range(5)]
            assert added == [5]
        elif hurry == "many bytes":
            monkeypatch.setattr(key_index, "HURRY_BYTES", 1)
            await rig.send(batch_of("a", 0, [b"5"], keys=["all"]))
            await until(lambda: added == [6])
        await rig.close()

    run(scenario)


def index_files(rig: StoreRig) -> list[str]:
    assert isinstance(rig.disk, CrashDisk)
    return sorted(path.removeprefix("index/") for path in rig.disk.files if path.startswith("index/"))


def test_time_range_paging_limit_and_ids() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), replace(TINY, defaultQueryMaxNum=4), clock=StepClock())
        await rig.topic("a")
        for number in range(10):
            await rig.send(batch_of("a", 0, [b"%d" % number], keys=["all all"], unique=["SAME"]))
            rig_clock(rig).now_ms += 700
        await settle(rig)
        query = rig.store.query
        newest = await query.by_key("a", "all", Window())
        assert bodies_of(newest) == [b"9", b"8", b"7", b"6"]
        assert newest.before_pos == newest.messages[-1].pos
        times = [found.frame.store_timestamp for found in (await query.by_key("a", "all", Window(), max_results=10)).messages][::-1]
        for first in range(10):
            for last in range(first, 10):
                inside = await query.by_key("a", "all", Window(times[first], times[last]), max_results=10)
                assert bodies_of(inside) == [b"%d" % number for number in range(last, first - 1, -1)]
        assert len(bodies_of(await query.by_unique_id(["a"], "SAME", Window(), max_results=10))) == 10
        assert bodies_of(await query.by_key("a", "SAME", Window())) == []  # an id is no key
        assert bodies_of(await query.by_unique_id(["a"], "all", Window())) == []
        tight = await query.by_key("a", "all", Window(), max_bytes=1)
        assert bodies_of(tight) == [b"9"]
        assert tight.before_pos
        for key, most in (("", 1), ("all", 1025), ("all", -1)):
            with pytest.raises(InvalidArgumentError):
                await query.by_key("a", key, Window(), max_results=most)
        await rig.close()

    run(scenario)


def test_messages_of_another_key_with_the_same_hash_are_looked_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.key_index.message_query.MAX_LOOKED_AT", 5)

    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), TINY, clock=StepClock())
        await rig.topic("a")
        await rig.send(batch_of("a", 0, [b"wanted"], keys=["AaAa"]))
        await rig.send(batch_of("a", 0, [b"other"] * 12, keys=["BBBB"] * 12))  # Java's hash of both is the same
        await settle(rig)
        answer = await rig.store.query.by_key("a", "AaAa", Window())
        assert (bodies_of(answer), answer.before_pos > 0) == ([], True)
        assert await find(rig, "a", "AaAa") == [b"wanted"]
        assert len(await find(rig, "a", "BBBB")) == 12
        await rig.close()

    run(scenario)


def rig_clock(rig: StoreRig) -> StepClock:
    clock = rig.store._env.clock
    assert isinstance(clock, StepClock)
    return clock


def test_only_real_places_of_messages_are_found_by_position() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), clock=StepClock())
        await rig.topic("a")
        inner = batch_of("a", 0, [b"forged"])
        await rig.send(batch_of("a", 0, [b"one", inner, b"three"], unique=["A", "B", "C"]))
        await settle(rig)
        messages = await rig.read_all(("a", 0), max_bytes=10_000)
        places = {message.physical_offset: message for message in messages}
        for pos in range(rig.log.end_pos + 10):
            found = await rig.store.query.at(pos)
            assert (found.frame if found is not None else None) == places.get(pos)
        assert offset_message_id(bytes([10, 1, 2, 3, 0, 0, 0x1B, 0x58]), messages[0].physical_offset).startswith("0A01020300001B58")
        await rig.command(DeleteTopic(name="a"))
        assert [await rig.store.query.at(pos) for pos in places] == [None] * 3
        await rig.topic("a")
        assert bodies_of(await rig.store.query.by_unique_id(["a"], "A", Window())) == []
        await rig.close()

    run(scenario)


def test_files_are_called_alike_on_every_replica_and_after_every_start() -> None:
    async def scenario() -> None:
        settings = replace(TINY, maxIndexNum=9)
        disk = CrashDisk()
        rig = await StoreRig.open(disk, settings, clock=StepClock())
        await rig.topic("a")
        for number in range(8):
            await rig.send(batch_of("a", 0, [b"%d" % number] * 3, keys=["x y"] * 3))
        await settle(rig)
        names = index_files(rig)
        assert len(names) == 6
        times = [created_ms_of(name) for name in names]
        assert times == sorted(time for time in times if time is not None)
        content = {name: bytes(disk.files[f"index/{name}"].current) for name in names[:-1]}
        await rig.close()
        bare = CrashDisk({path: bytes(file.current) for path, file in disk.files.items() if not path.startswith(("index/", "config/key"))})
        other = await StoreRig.open(bare, settings, clock=StepClock(2_000_000_000_000))
        await settle(other)
        assert index_files(other) == names
        assert {name: bytes(bare.files[f"index/{name}"].current) for name in names[:-1]} == content
        await other.close()

    run(scenario)


def test_files_before_the_start_of_the_log_are_dropped() -> None:
    async def scenario() -> None:
        disk, settings, clock = CrashDisk(), replace(TINY, maxIndexNum=9), StepClock()
        rig = await StoreRig.open(disk, settings, clock=clock)
        await rig.topic("a")
        for number in range(8):
            await rig.send(batch_of("a", 0, [b"%d" % number] * 3, keys=["x y"] * 3))
        await settle(rig)
        index = rig.store.index
        assert index is not None
        names, marks = index_files(rig), [file.mark for file in index.files.files]
        assert await index.drop_before(marks[2].end_pos) == 2
        assert await index.drop_before(marks[2].end_pos) == 0
        assert index_files(rig) == names[2:]
        found = await find(rig, "a", "x")
        assert found[-1] == b"7"
        assert 14 < len(found) < 18
        assert await index.drop_before(1 << 60) == 3  # the one that is added to stays
        await rig.close()
        again = await StoreRig.open(disk.after_kill(), settings, clock=clock)
        await settle(again)
        assert index_files(again) == names[5:]
        await again.close()

    run(scenario)


@pytest.mark.parametrize(
    ("at", "text"),
    [(17, "not the header"), (40 + 4 * 3 + 3, "slot 3 names entry"), (40 + 44 + 20 * 2 + 9, "no message begins at position"), (880, "")],
)
def test_verify_names_file_and_byte(at: int, text: str) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, TINY, clock=StepClock())
        await rig.topic("a")
        await rig.send(batch_of("a", 0, [b"x"] * 3, keys=["x y", "", "z"]))
        await settle(rig)
        await rig.close()
        (name,) = index_files(rig)
        disk.files[f"index/{name}"].current[at] ^= 0x40
        found = [finding async for finding in verify_store(disk)]
        if not text:  # behind the entries in use: nothing was written there
            assert found == []
            return
        (finding,) = found
        assert (finding.file, finding.kind, finding.is_damage) == (f"/crash/index/{name}", DamageKind.INDEX_FILE, True)
        assert text in finding.text
        assert at - 20 <= finding.pos <= at

    run(scenario)


def test_a_full_disk_only_delays_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.key_index.index_set.FULL_DISK_RETRY_S", 0.001)

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, replace(TINY, maxIndexNum=5), clock=StepClock())
        await rig.topic("a")
        disk.full_paths = ("index/",)
        for number in range(4):
            await rig.send(batch_of("a", 0, [b"%d" % number] * 3, keys=["x"] * 3))
        assert rig.store.index is not None
        assert not await rig.store.index.caught_up(rig.store.applied_index, 0.01)
        disk.full_paths = ()
        await settle(rig)
        assert len(await find(rig, "a", "x")) == 12
        await rig.close()

    run(scenario)


@pytest.mark.parametrize("moment", ["seal", "create"])
def test_a_disk_that_fills_between_two_index_files_only_delays_the_index(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    monkeypatch.setattr("store.key_index.index_set.FULL_DISK_RETRY_S", 0.001)

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, replace(TINY, maxIndexNum=5), clock=StepClock())
        await rig.topic("a")
        await rig.send(batch_of("a", 0, [b"0"] * 4, keys=["x"] * 4))
        await settle(rig)
        assert len(index_files(rig)) == 1
        original = getattr(OpenIndexFile, moment)
        full = True

        async def fails_while_full(file: OpenIndexFile) -> object:
            if full:
                raise OSError(errno.ENOSPC, "no space left on device")
            return await original(file)

        monkeypatch.setattr(OpenIndexFile, moment, fails_while_full)
        for number in range(1, 4):
            await rig.send(batch_of("a", 0, [b"%d" % number] * 3, keys=["x"] * 3))
        assert rig.store.index is not None
        assert not await rig.store.index.caught_up(rig.store.applied_index, 0.05)
        full = False
        await settle(rig)
        assert len(await find(rig, "a", "x")) == 13
        await rig.close()
        again = await StoreRig.open(disk.after_kill(), replace(TINY, maxIndexNum=5), clock=StepClock())
        await settle(again)
        assert len(await find(again, "a", "x")) == 13
        await again.close()

    run(scenario)


def test_off_means_no_index() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk(), replace(TINY, messageIndexEnable=False), clock=StepClock())
        await rig.topic("a")
        (outcome,) = await rig.send(batch_of("a", 0, [b"x"], keys=["x"]))
        with pytest.raises(NotReadyError, match="messageIndexEnable"):
            await rig.store.query.by_key("a", "x", Window())
        found = await rig.store.query.at(outcome.physical_offset)
        assert found is not None
        assert found.frame.body == b"x"
        assert index_files(rig) == []
        await rig.close()

    run(scenario)


class GatedDisk(CrashDisk):
    """A disk that is slow to give the index files."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        super().__init__(contents)
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    async def open(self, path: str, *, create: bool = False) -> CrashFile:
        if path.startswith("index/"):
            self.waiting.set()
            await self.gate.wait()
        return await super().open(path, create=create)


async def reopened_slowly() -> tuple[GatedDisk, StoreRig, Model]:
    """A store that was started anew, while its index files are still being read."""
    disk, clock, draw, model = CrashDisk(), StepClock(), random.Random(5), Model()
    rig = await StoreRig.open(disk, TINY, clock=clock)
    for topic in "ab":
        await rig.topic(topic, 2)
    for _ in range(20):
        await send(rig, draw, model)
    await settle(rig)
    await rig.close()
    slow = GatedDisk({path: bytes(content.current) for path, content in disk.files.items()})
    again = await StoreRig.open(slow, TINY, clock=clock)
    await slow.waiting.wait()
    return slow, again, model


def test_a_start_does_not_wait_for_the_index_files() -> None:
    async def scenario() -> None:
        disk, rig, model = await reopened_slowly()
        draw = random.Random(6)
        for _ in range(10):
            await send(rig, draw, model)
        await rig.commit()
        topic, key = next(iter(model))
        answer = await rig.store.query.by_key(topic, key, Window())
        assert (answer.messages, answer.complete) == ([], False)
        disk.gate.set()
        await assert_is_model(rig, model)
        await rig.close()

    run(scenario)


def test_a_stop_before_the_index_files_are_read_leaves_them_as_they_are() -> None:
    async def scenario() -> None:
        disk, rig, model = await reopened_slowly()
        before = {path: bytes(content.current) for path, content in disk.files.items() if path.startswith("index/") or "keyIndex" in path}
        closing = asyncio.ensure_future(rig.close())
        await asyncio.sleep(0.1)
        disk.gate.set()
        await closing
        assert {path: bytes(disk.files[path].current) for path in before} == before
        again = await StoreRig.open(CrashDisk({path: bytes(content.current) for path, content in disk.files.items()}), TINY)
        await assert_is_model(again, model)
        await again.close()

    run(scenario)
