"""Reports made up from a seed, with names that try to break the page."""

from __future__ import annotations

import json
import random
from pathlib import Path

from pydantic import TypeAdapter

from dledger_drill.report.model import (
    COUNTED,
    FaultSpan,
    LeaderSpan,
    MachineInfo,
    OutageSpan,
    Report,
    RoundReport,
    ViolationText,
)

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m"
FAULTS = ("kill-leader", "pause-follower", "partition-leader", "full-disk-all", "power-two")


def made(rounds: int = 20, seed: int = 1, *, failing: float = 0.0, hostile: bool = False) -> Report:
    draw = random.Random(seed)
    report = Report(
        version="0.4.0",
        command=f"dledger drill --seed {seed}",
        seed=seed,
        started="2026-11-23T08:00:00+00:00",
        duration_s=6.2 * rounds,
        machine=MachineInfo("Some CPU", 2, 24 << 30, "Linux 6.1", "3.11.7"),
        settings={"nodes": 3, "groups": 2, "workloads": "plain, push"},
        described={name: f"what {name} does {HOSTILE}" if hostile else f"what {name} does" for name in FAULTS},
        impossible={"power-leader": HOSTILE if hostile else "loop disks need root"},
        workloads={"send": {"ok": 100, "failed": 1, "unknown": 2}, "stored": {"ok": 4}, "deliver": {"ok": 9}, "fault": {"ok": rounds}},
    )
    report.rounds = [round_of(draw, number, draw.random() < failing, HOSTILE if hostile else "") for number in range(1, rounds + 1)]
    return report


def read_document(path: Path) -> Report:
    return TypeAdapter(Report).validate_python(json.loads(path.read_bytes())["report"])


def round_of(draw: random.Random, number: int, fails: bool, hostile: str) -> RoundReport:
    duration_s = draw.uniform(4, 9)
    bins = int(duration_s * 10)
    faults = tuple(draw.sample(FAULTS, draw.choice((1, 1, 1, 2))))
    start_s = draw.uniform(0.3, 1.0)
    outage_s = draw.uniform(0.05, 2.5)
    rates = {
        group: [0 if start_s < at / 10 < start_s + outage_s else draw.randrange(60, 90) for at in range(bins)] for group in ("g0", "g1")
    }
    return RoundReport(
        number=number,
        seed=draw.getrandbits(32),
        faults=faults,
        repeat=f"dledger drill --seed 1 --only-round {number}",
        duration_s=duration_s,
        acknowledged=sum(map(sum, rates.values())),
        terms=draw.randrange(3),
        counts={name: int(fails) for name in (*COUNTED, "stale read")},
        violations=[ViolationText("lost", f"plain-0/17 {hostile}", (f'{{"kind": "send", "value": "{hostile}"}}',))] if fails else [],
        outages=[OutageSpan("g0", start_s, start_s + outage_s)],
        fault_spans=[FaultSpan(name, ("n0", hostile), start_s + at, start_s + at + 1.5) for at, name in enumerate(faults)],
        leaders=[LeaderSpan("g0", "n0", 3, 0, start_s), LeaderSpan("g0", f"n1{hostile}", 4, start_s + outage_s, duration_s)],
        rates=rates,
        latencies_ms=[None if rates["g0"][at] == 0 else draw.uniform(1, 40) for at in range(bins)],
    )
