"""Starts after every kind of stop and damage: torn tails are cut, damage is reported and never cut, nothing gets silently shorter."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from dledger.core.types import EntryId
from dledger.log.log import Log
from dledger.log.report import DamageKind, RecoveryReport
from dledger_wire.errors import StorageDamagedError
from tests.unit.log.crash_disk import CrashDisk, PowerLost
from tests.unit.log.log_rig import TINY, add, bodies, config, everything, findings, promise, run

FIRST = "00000000000000000000"
Files = dict[str, bytes]


async def written(count: int = 20, *, extra_unsynced: int = 0, **changes: int) -> tuple[Files, list[tuple[int, int, bytes]]]:
    """The files of a log of ``count`` entries, and the entries; ``extra_unsynced`` more lie in the file without being synced."""
    disk = CrashDisk()
    log, _ = await Log.open(disk, config(**changes))
    promise(log, 1)
    entries = add(log, count)
    await log.flush()
    if extra_unsynced:
        entries += add(log, extra_unsynced)
        await log.flush(sync=False)
    else:
        await log.close()
    return {path: bytes(content.current) for path, content in disk.files.items()}, bodies(entries)


async def start(files: Files) -> tuple[CrashDisk, Log, RecoveryReport]:
    disk = CrashDisk(files)
    log, report = await Log.open(disk, TINY)
    return disk, log, report


def changed(files: Files, path: str, change: Callable[[bytearray], None]) -> Files:
    data = bytearray(files[path])
    change(data)
    return files | {path: bytes(data)}


async def readable(log: Log) -> tuple[list[tuple[int, int, bytes]], list[str]]:
    """What every entry reads as; and the errors of those that cannot be read."""
    got, errors = [], []
    index = log.first_index
    while index <= log.last.index:
        try:
            piece = await log.read(index, 0, log.last.index)
        except StorageDamagedError as error:
            errors.append(str(error))
            index += 1
            continue
        got += bodies(piece)
        index = piece[-1].index + 1
    return got, errors


def test_every_flipped_byte_is_classified_and_none_makes_the_log_silently_shorter() -> None:
    async def scenario() -> None:
        files, wanted = await written(14)
        kinds: set[object] = set()
        for path in sorted(files):
            # Of the long stretches of zeros in units and hard state, some bytes stand for the rest.
            stride = 1 if path.startswith("commitlog") else 7
            for at in [*range(0, min(len(files[path]), 700), stride), *range(700, len(files[path]), max(stride, 53))]:
                damaged = changed(files, path, lambda data, at=at: data.__setitem__(at, data[at] ^ 0xFF))
                disk, log, report = await start(damaged)
                got, errors = await readable(log)
                where = f"{path} byte {at}: {report.summary()}"
                if report.damaged:
                    kinds.add(report.damaged[0].kind)
                    assert path.startswith("commitlog"), where
                    assert got == [entry for entry in wanted if entry in got], where
                    with pytest.raises(StorageDamagedError):
                        add(log, 1)
                    assert disk.files[path].current == damaged[path], f"{where}: damage must not be cut"
                else:
                    assert (got, errors) == (wanted, []), where
                    assert log.last == EntryId(14, 1), where
                    if report.torn is not None:
                        kinds.add(report.torn.__class__.__name__)
                        assert report.torn.pos == log.end_pos, where
                    if report.fillers_rewritten:
                        kinds.add(DamageKind.BAD_FILLER)
                        assert disk.files[path].current == files[path], where
                    elif path.startswith("commitlog") and report.torn is None:
                        assert disk.files[path].current == damaged[path], where
                await log.close()
        assert DamageKind.BAD_ENTRY in kinds
        assert DamageKind.BAD_FILLER in kinds

    run(scenario)


def test_damage_names_file_byte_and_entry_and_goes_on_behind_it() -> None:
    async def scenario() -> None:
        files, wanted = await written(20)
        disk, log, report = await start(files)
        third, ninth = await log.find(3), await log.find(9)
        await log.close()
        path = f"commitlog/{ninth.pos // 1024 * 1024:020d}"
        files = changed(files, f"commitlog/{FIRST}", lambda data: data.__setitem__(third.pos + 60, data[third.pos + 60] ^ 1))
        files = changed(files, path, lambda data: data.__setitem__(ninth.pos % 1024 + 20, 0x77))
        disk, log, report = await start(files)
        assert [(finding.file, finding.pos, finding.index, finding.kind) for finding in report.damaged] == [
            (f"/crash/commitlog/{FIRST}", third.pos, 3, DamageKind.BAD_ENTRY),
            (f"/crash/{path}", ninth.pos % 1024, 9, DamageKind.BAD_ENTRY),
        ]
        assert log.last == EntryId(20, 1)
        got, errors = await readable(log)
        assert got == [entry for entry in wanted if entry[0] not in (3, 9)]
        assert len(errors) == 2
        assert f"/crash/commitlog/{FIRST}: byte {third.pos}: entry 3" in errors[0]
        with pytest.raises(StorageDamagedError, match="entry 3"):
            await log.flush()
        found = await findings(disk)
        assert [(finding.index, finding.kind) for finding in found] == [(3, DamageKind.BAD_ENTRY), (9, DamageKind.BAD_ENTRY)]
        await log.close()

    run(scenario)


@pytest.mark.parametrize("verify_bytes", [None, 200], ids=["all checked", "the end checked"])
def test_a_damaged_filler_is_written_anew_since_it_holds_nothing(verify_bytes: int | None) -> None:
    """What comes first in the next file continues the chain, so nothing can have stood there."""

    async def scenario() -> None:
        files, entries = await written(20)
        _, log, _ = await start(files)
        second = log.segments[1]
        place = log.locate(second.first_index - 1)
        await log.close()
        assert place is not None
        path, at = f"commitlog/{FIRST}", place.end_pos
        for number, change in enumerate(
            [lambda data, bit=bit: data.__setitem__(at + bit // 8, data[at + bit // 8] ^ (1 << bit % 8)) for bit in range(64)]
            + [lambda data: data.__setitem__(slice(at, at + 8), bytes(8)), lambda data: data.__delitem__(slice(at, None))]
        ):
            disk = CrashDisk(changed(files, path, change))
            log, report = await Log.open(disk, config(verify_bytes=verify_bytes))
            assert report.is_clean, (number, report.summary())
            assert report.fillers_rewritten == 1
            assert bodies(await everything(log)) == entries
            await log.close()
            assert bytes(disk.files[path].current) == files[path]
            assert not await findings(disk)

    run(scenario)


def test_a_flipped_byte_behind_a_fillers_head_is_zeroed_by_the_next_start() -> None:
    async def scenario() -> None:
        files, entries = await written(20)
        path = f"commitlog/{FIRST}"
        for verify_bytes in (None, 200):
            disk = CrashDisk(changed(files, path, lambda data: data.__setitem__(len(data) - 3, 1)))
            (finding,) = await findings(disk)
            assert (finding.kind, finding.pos) == (DamageKind.BAD_FILLER, 1021)
            assert "the next start rewrites it" in finding.text
            log, report = await Log.open(disk, config(verify_bytes=verify_bytes))
            assert (report.is_clean, report.fillers_rewritten) == (True, 1)
            assert bodies(await everything(log)) == entries
            await log.close()
            assert bytes(disk.files[path].current) == files[path]
            assert not await findings(disk)

    run(scenario)


@pytest.mark.parametrize("filled", [False, True], ids=["as written", "filled ahead"])
def test_a_spoilt_file_that_was_only_prepared_keeps_no_log_from_opening(filled: bool) -> None:
    """Nothing says that an entry stands in it, and the file before has room still."""

    async def scenario() -> None:
        files, entries = await written(3)
        if filled:
            files = changed(files, f"commitlog/{FIRST}", lambda data: data.extend(bytes(1024 - len(data))))
        prepared, units = f"commitlog/{1024:020d}", f"index-units/{1024:020d}"
        files |= {units: bytes(1024)}
        spoilt = [{at: 1} for at in (0, 7, 8, 20, 47, 48, 500, 1023)] + [{at: 0xA5 for at in range(1024)}, {100: 1, 900: 2}]
        for change in spoilt:
            bad = bytes(change.get(at, 0) for at in range(1024))
            disk = CrashDisk(files | {prepared: bad})
            (finding,) = await findings(disk)
            assert (finding.file, finding.kind, finding.is_damage) == (f"/crash/{prepared}", DamageKind.PREPARED, False)
            assert finding.pos == min(change)
            log, report = await Log.open(disk, TINY)
            assert report.is_clean
            assert report.spoilt_prepared is not None
            assert report.spoilt_prepared in report.summary()
            assert bytes(disk.files[report.spoilt_prepared].current) == bad[min(change) : max(change) + 1]
            assert prepared not in disk.files
            assert bodies(await everything(log)) == entries
            promise(log, 2)
            add(log, 20, term=2)
            await log.flush()
            await log.close()
            assert not await findings(disk)
            log, report = await Log.open(disk, TINY)
            assert (report.is_clean, log.last) == (True, EntryId(23, 2))
            await log.close()

    run(scenario)


def test_a_spoilt_prepared_file_behind_damage_is_judged_once_that_is_mended() -> None:
    async def scenario() -> None:
        files, _entries = await written(3)
        whole = files | {f"commitlog/{1024:020d}": bytes(500) + b"x", f"index-units/{1024:020d}": bytes(1024)}
        disk, log, report = await start(changed(whole, f"commitlog/{FIRST}", lambda data: data.__setitem__(60, data[60] ^ 1)))
        assert report.damaged[0].kind is DamageKind.BAD_ENTRY
        assert f"commitlog/{1024:020d}" in disk.files
        await log.close()

    run(scenario)


def test_power_lost_while_a_spoilt_prepared_file_is_put_away() -> None:
    async def scenario() -> None:
        files, entries = await written(3)
        files |= {f"commitlog/{1024:020d}": bytes(500) + b"x" * 600, f"index-units/{1024:020d}": bytes(1024)}
        for crash_after in range(60):
            disk = CrashDisk(files, crash_after=crash_after)
            with contextlib.suppress(PowerLost):
                await Log.open(disk, TINY)
            disk = disk.after_power_loss(random.Random(crash_after))
            log, report = await Log.open(disk, TINY)
            assert report.is_clean
            assert bodies(await everything(log)) == entries
            await log.close()
            assert len([path for path in disk.files if path.startswith("quarantine/") and not path.endswith(".part")]) == 1

    run(scenario)


def test_a_filler_is_not_made_up_where_nothing_says_that_the_next_file_continues_the_log() -> None:
    """An index unit says so too; without it, and with a header that does not, the file is left as it is.  Damage is told either way."""

    async def scenario() -> None:
        files, _ = await written(20)
        _, log, _ = await start(files)
        second = log.segments[1]
        place = log.locate(second.first_index - 1)
        await log.close()
        assert place is not None
        bad = changed(files, f"commitlog/{FIRST}", lambda data: data.__setitem__(place.end_pos, 7))
        next_path = f"commitlog/{second.start_pos:020d}"
        for at in (8, 16, 36, 40):  # index, term, chain CRC, body CRC of its first entry
            worse = changed(bad, next_path, lambda data, at=at: data.__setitem__(at + 3, data[at + 3] ^ 1))
            _, log, report = await start(worse)
            assert (report.fillers_rewritten, report.damaged[0].kind, report.damaged[0].index) == (
                1,
                DamageKind.BAD_ENTRY,
                second.first_index,
            )
            await log.close()
            del worse[f"index-units/{second.start_pos:020d}"]
            disk, log, report = await start(worse)
            assert report.damaged[0].kind is DamageKind.BAD_FILLER
            await log.close()
            assert bytes(disk.files[f"commitlog/{FIRST}"].current) == worse[f"commitlog/{FIRST}"]

    run(scenario)


def test_a_file_cut_at_any_length_loses_only_what_was_never_synced() -> None:
    async def scenario() -> None:
        files, wanted = await written(4, extra_unsynced=3)
        path = f"commitlog/{FIRST}"
        _, log, report = await start(files)
        assert report.is_clean
        assert log.last.index == 7
        synced_end = (await log.find(4)).end_pos
        ends = [0] + [(await log.find(index)).end_pos for index in range(1, 8)]
        await log.close()
        for length in range(len(files[path])):
            cut = files | {path: files[path][:length]}
            disk, log, report = await start(cut)
            whole = max(number for number, end in enumerate(ends) if end <= length)
            if length < synced_end:
                assert report.damaged, length
                assert report.torn is None
                assert disk.files[path].current == cut[path]
            else:
                assert not report.damaged, length
                assert bodies(await everything(log)) == wanted[:whole]
                assert (report.torn is not None) == any(files[path][ends[whole] : length]), "an entry's first bytes are zeros"
                add(log, 2)
                await log.flush()
            await log.close()

    run(scenario)


def test_a_torn_tail_goes_to_quarantine_once() -> None:
    async def scenario() -> None:
        files, wanted = await written(4, extra_unsynced=3)
        path = f"commitlog/{FIRST}"
        _, log, _ = await start(files)
        sixth = await log.find(6)
        await log.close()
        files = changed(files, path, lambda data: data.__setitem__(sixth.pos + 50, data[sixth.pos + 50] ^ 1))
        disk, log, report = await start(files)
        assert report.torn is not None
        assert (report.torn.pos, report.torn.size_bytes) == (sixth.pos, len(files[path]) - sixth.pos)
        assert disk.files[report.torn.quarantine].current == files[path][sixth.pos :]
        assert bodies(await everything(log)) == wanted[:5]
        await log.close()
        # The power went after the quarantine was written and before the cut: the same bytes are kept once.
        again, log, second = await start(files | {report.torn.quarantine: files[path][sixth.pos :]})
        assert second.torn == report.torn
        assert [name for name in again.files if name.startswith("quarantine")] == [report.torn.quarantine]
        await log.close()
        _, log, third = await start({name: bytes(content.current) for name, content in again.files.items()})
        assert third.is_clean
        await log.close()

    run(scenario)


@pytest.mark.parametrize("index", [3, 9, 20], ids=["many segments behind it", "some", "the last entry"])
def test_a_tail_that_was_given_up_is_cut_and_kept_whenever_the_power_goes(index: int) -> None:
    """At every step the log is what it was, damage and all, or a shorter part of it, and giving up again ends with the cut."""

    async def scenario() -> None:
        files, wanted = await written(20)
        _, log, _ = await start(files)
        place, segments = await log.find(index), log.segments
        path, start_pos = log.file_of(place.pos)
        behind = sum(segment.start_pos > start_pos for segment in segments)
        await log.close()
        bad = changed(files, path.removeprefix("/crash/"), lambda data: data.__setitem__(place.pos - start_pos + 50, 0xEE))
        for step in range(10_000):
            disk, crashed = CrashDisk(bad, crash_after=step), False
            try:
                log, report = await Log.open(disk, TINY)
                assert [finding.index for finding in report.damaged] == [index]
                await log.discard_from(index)
                await log.close()
                log, report = await Log.open(disk, TINY)
                await log.close()
            except PowerLost:
                crashed = True
            disk = disk.after_power_loss(random.Random(step))
            log, report = await Log.open(disk, TINY)
            if report.damaged:
                await log.discard_from(index)
                await log.close()
                log, report = await Log.open(disk, TINY)
            assert not report.damaged
            assert bodies(await everything(log)) == wanted[: index - 1]
            kept = [name for name in await disk.list("quarantine") if not name.endswith(".part")]
            assert sum("-whole-" in name for name in kept) == behind
            assert len(kept) > behind
            await log.close()
            if not crashed:
                break
        assert step > 3

    run(scenario)


def test_a_bad_last_entry_with_a_unit_is_damage_without_one_it_is_torn() -> None:
    async def scenario() -> None:
        files, _ = await written(5)
        _, log, _ = await start(files)
        last = await log.find(5)
        await log.close()
        bad = changed(files, f"commitlog/{FIRST}", lambda data: data.__setitem__(last.pos + 50, 0))
        _, log, report = await start(bad)
        assert [finding.index for finding in report.damaged] == [5]
        await log.close()
        units = f"index-units/{FIRST}"
        no_unit = changed(bad, units, lambda data: data.__setitem__(slice(4 * 32, 5 * 32), bytes(32)))
        _, log, report = await start(no_unit)
        assert report.torn is not None
        assert log.last.index == 4
        await log.close()
        half_unit = changed(bad, units, lambda data: data.__setitem__(4 * 32 + 23, 0x55))
        _, log, report = await start(half_unit)
        assert [finding.index for finding in report.damaged] == [5], "a unit with one bad field still proves its entry"
        await log.close()
        without = {path: data for path, data in bad.items() if path != units}
        _, log, report = await start(without)
        assert [finding.index for finding in report.damaged] == [5], "without units nothing tells torn from damaged"
        assert "without index units" in report.damaged[0].text
        await log.close()

    run(scenario)


@pytest.mark.parametrize("spoil", ["remove all", "remove one", "empty", "short", "garbage", "zeros", "shifted"])
def test_units_are_written_anew_from_the_log(spoil: str) -> None:
    async def scenario() -> None:
        files, wanted = await written(30)
        spoilt = dict(files)
        for number, path in enumerate(sorted(path for path in files if path.startswith("index-units"))):
            data = files[path]
            if spoil == "remove all" or (spoil == "remove one" and number == 1):
                del spoilt[path]
            elif spoil != "remove one":
                changes = {
                    "empty": b"",
                    "short": data[:77],
                    "garbage": b"\xa5" * len(data),
                    "zeros": bytes(len(data)),
                    "shifted": data[32:],
                }
                spoilt[path] = changes[spoil]
        disk, log, report = await start(spoilt)
        assert not report.damaged
        assert report.torn is None
        assert report.units_rewritten > 0
        assert bodies(await everything(log)) == wanted
        await log.close()
        for path, data in files.items():
            assert bytes(disk.files[path].current).rstrip(b"\0") == data.rstrip(b"\0")
        assert await findings(disk) == []
        _, log, report = await start(dict(spoilt) | {path: bytes(content.current) for path, content in disk.files.items()})
        assert report.units_rewritten == 0
        await log.close()

    run(scenario)


def test_a_missing_file_is_damage() -> None:
    async def scenario() -> None:
        files, _ = await written(30)
        starts = sorted(path for path in files if path.startswith("commitlog"))
        assert len(starts) >= 4
        for gone in starts:
            disk, log, report = await start({path: data for path, data in files.items() if path != gone})
            assert report.damaged, gone
            assert report.damaged[0].kind in (DamageKind.MISSING_SEGMENT, DamageKind.BAD_FILLER, DamageKind.BAD_ENTRY)
            assert any(finding.is_damage for finding in await findings(disk))
            with pytest.raises(StorageDamagedError):
                promise(log, 2)
            await log.close()
        _, log, report = await start({path: data for path, data in files.items() if not path.startswith("commitlog")})
        assert len(report.damaged) == len(starts)
        await log.close()

    run(scenario)


def test_an_older_version_of_a_file_is_damage() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, TINY)
        promise(log, 2)
        add(log, 5, 1)
        await log.flush()
        old = bytes(disk.files[f"commitlog/{FIRST}"].current)
        log.cut(3)
        add(log, 6, 2)
        await log.flush()
        await log.close()
        files = {path: bytes(content.current) for path, content in disk.files.items()}
        assert old[:100] == files[f"commitlog/{FIRST}"][:100]
        _, log, report = await start(files | {f"commitlog/{FIRST}": old})
        assert report.damaged
        await log.close()

    run(scenario)


def test_an_entry_of_another_log_in_the_right_place_is_damage() -> None:
    async def scenario() -> None:
        files, _ = await written(6)
        other = CrashDisk()
        log, _ = await Log.open(other, TINY)
        promise(log, 1)
        entries = add(log, 6)
        for entry in entries:
            assert entry.buffers
        log.cut(2)
        log.append(log.encode(1, entries[1].kind, [b"#" * (entries[1].size_bytes - 48)]))
        foreign = add(log, 4)[0]
        place = entries[2]
        assert (foreign.pos, foreign.size_bytes, foreign.index) == (place.pos, place.size_bytes, place.index)
        data = b"".join(bytes(buffer) for buffer in foreign.buffers)
        files = changed(files, f"commitlog/{FIRST}", lambda content: content.__setitem__(slice(foreign.pos, foreign.end_pos), data))
        _, log, report = await start(files)
        assert report.damaged[0].index == 3
        assert "chain checksum" in report.damaged[0].text
        await log.close()

    run(scenario)


def test_files_that_are_none_of_ours_are_left_alone_and_reported() -> None:
    async def scenario() -> None:
        files, wanted = await written(5)
        files |= {"commitlog/notes.txt": b"mine", "index-units/backup": b"too"}
        disk, log, report = await start(files)
        assert report.is_clean
        assert report.foreign_files == ["commitlog/notes.txt", "index-units/backup"]
        assert bodies(await everything(log)) == wanted
        await log.close()
        assert disk.files["commitlog/notes.txt"].current == b"mine"
        assert [finding.kind for finding in await findings(disk)] == [DamageKind.FOREIGN_FILE] * 2

    run(scenario)


def test_a_log_ahead_of_the_promised_term_is_refused() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, TINY)
        promise(log, 4)
        await log.flush()
        old = bytes(disk.files["hardstate"].current)
        promise(log, 5)
        add(log, 3, 5)
        await log.flush()
        await log.close()
        files = {path: bytes(content.current) for path, content in disk.files.items()}
        with pytest.raises(StorageDamagedError, match="says term 4, but the log has entries of term 5"):
            await start(files | {"hardstate": old})
        with pytest.raises(StorageDamagedError, match="missing"):
            await start({path: data for path, data in files.items() if path != "hardstate"})

    run(scenario)


def test_a_file_that_cannot_be_read_is_damage() -> None:
    async def scenario() -> None:
        files, _ = await written(5)
        disk = CrashDisk(files)
        log, _ = await Log.open(disk, config(cache_bytes=0))
        disk.fail_read_of = "commitlog"
        with pytest.raises(StorageDamagedError, match="entry 2: cannot be read: input/output error") as damage:
            await log.read(2, 100, 5)
        assert damage.value.detail_int("index", 0) == 2
        await log.close()

    run(scenario)


@pytest.mark.parametrize("places_limit", [1 << 20, 4], ids=["places in memory", "places by units"])
def test_a_sector_that_cannot_be_read_hides_only_the_entries_it_is_in(places_limit: int) -> None:
    async def scenario() -> None:
        files, wanted = await written(40)
        for at in range(5, 1000, 37):
            disk = CrashDisk(files)
            log, _ = await Log.open(disk, config(cache_bytes=0, places_limit=places_limit))
            disk.files[f"commitlog/{FIRST}"].unreadable.add(at, 20)
            places = [await log.find(index) for index in range(1, 41)]
            hidden = [place.index for place in places if place.pos < at + 20 and at < place.end_pos]
            index, errors = 1, set()
            got: list[tuple[int, int, bytes]] = []
            while index <= log.last.index:
                try:
                    piece = await log.read(index, 1 << 20, log.last.index)
                except StorageDamagedError as error:
                    errors.add(error.detail_int("index", 0))
                    index += 1
                    continue
                got += bodies(piece)
                index = piece[-1].index + 1
            where = f"byte {at}: {hidden}"
            assert errors == set(hidden), where
            # An entry that follows a header which cannot be read has nothing to be checked against.
            assert {entry[0] for entry in wanted} - {entry[0] for entry in got} <= {*hidden, *(index + 1 for index in hidden)}, where
            assert got == [entry for entry in wanted if entry in got], where
            await log.close()

    run(scenario)


@pytest.mark.parametrize("extra", [0, 3], ids=["all synced", "a tail that is not"])
def test_a_start_names_or_cuts_what_a_sector_hides_and_loses_nothing_synced(extra: int) -> None:
    async def scenario() -> None:
        files, wanted = await written(14, extra_unsynced=extra)
        ends: set[DamageKind | None] = set()
        for path in sorted(path for path in files if path.startswith("commitlog")):
            for at in range(0, len(files[path]), 29):
                disk = CrashDisk(files)
                disk.files[path].unreadable.add(at, 20)
                await findings(disk)
                log, report = await Log.open(disk, TINY)
                where = f"{path} byte {at}: {report.summary()}"
                if report.damaged:
                    ends.add(report.damaged[0].kind)
                    assert report.damaged[0].kind is DamageKind.BAD_ENTRY, where
                    assert disk.files[path].current == files[path], f"{where}: damage must not be cut"
                else:
                    ends.add(None)
                    assert log.last.index >= 14, where
                    got, errors = await readable(log)
                    assert (got, errors) == (wanted[: log.last.index], []), where
                    add(log, 1)
                    await log.flush()
                await log.close()
        assert ends == {DamageKind.BAD_ENTRY, None}

    run(scenario)


def test_index_units_that_cannot_be_read_are_written_anew_or_named() -> None:
    async def scenario() -> None:
        files, wanted = await written(30)
        for path in sorted(path for path in files if path.startswith("index-units")):
            disk = CrashDisk(files)
            disk.files[path].unreadable.add(40, 20)
            assert {finding.kind for finding in await findings(disk)} == {DamageKind.MISSING_UNITS}
            log, report = await Log.open(disk, TINY)
            assert not report.damaged
            assert report.units_rewritten > 0
            assert (await readable(log), log.last.index) == ((wanted, []), 30)
            add(log, 3)
            await log.flush()
            await log.close()
            assert await findings(disk) == []
        disk = CrashDisk(files)
        log, _ = await Log.open(disk, config(cache_bytes=0, places_limit=4))
        disk.files[f"index-units/{FIRST}"].unreadable.add(40, 20)
        with pytest.raises(StorageDamagedError, match="no index unit of entry 2; a restart of the node rewrites the units"):
            await log.read(2, 100, 5)
        assert bodies(await log.read(1, 1000, 5)) == wanted[:1]
        await log.close()

    run(scenario)


def test_without_units_that_can_be_read_a_bad_end_is_damage() -> None:
    async def scenario() -> None:
        files, _ = await written(10)
        last = sorted(path for path in files if path.startswith("commitlog"))[-1]
        end = len(files[last].rstrip(b"\0"))
        disk = CrashDisk(changed(files, last, lambda data: data.__setitem__(end - 1, data[end - 1] ^ 1)))
        disk.files[last.replace("commitlog", "index-units")].unreadable.add(0, 20)
        log, report = await Log.open(disk, TINY)
        assert [(finding.index, finding.kind) for finding in report.damaged] == [(10, DamageKind.BAD_ENTRY)]
        await log.close()

    run(scenario)


def test_a_damaged_log_start_is_refused() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, TINY)
        promise(log, 1)
        add(log, 40)
        await log.flush()
        await log.trim(25)
        await log.close()
        files = {path: bytes(content.current) for path, content in disk.files.items()}
        for bad in (b"", b"{}", files["logstart.json"].replace(b'"first_index": ', b'"first_index": 1')):
            with pytest.raises(StorageDamagedError, match=r"logstart\.json is damaged"):
                await start(files | {"logstart.json": bad})
        _, log, report = await start({path: data for path, data in files.items() if path != "logstart.json"})
        assert report.damaged[0].kind is DamageKind.MISSING_SEGMENT
        await log.close()

    run(scenario)


def test_units_left_without_a_log_file_are_gone_for_good() -> None:
    """A crash between the two files of a new segment: what is then rolled into writes files that are there."""

    async def scenario() -> None:
        files, _ = await written(3)
        whole, _ = await written(60)
        next_start = sorted(path.removeprefix("commitlog/") for path in whole if path.startswith("commitlog/"))[1]
        disk, log, report = await start(files | {f"index-units/{next_start}": bytes(1024)})
        assert not report.damaged
        entries = add(log, 60)
        await log.flush()
        for path in [f"{folder}/{segment.start_pos:020d}" for segment in log.segments for folder in ("commitlog", "index-units")]:
            assert path in disk.files
        assert len(log.segments) > 1
        _, again, report = await start({path: bytes(content.current) for path, content in disk.files.items()})
        assert not report.damaged
        assert again.last == EntryId(entries[-1].index, entries[-1].term)

    run(scenario)
