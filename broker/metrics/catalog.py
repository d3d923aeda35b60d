"""Every metric that a process of the cluster has: name, type, unit, labels and what it says; ``catalog.toml`` is the list.

Owns how the list is read, and nothing that measures.  The collectors take names and help from here and fail for a name that is not in
it; the page of the reference, alerts and boards are checked against it.  Every series also has the labels ``group`` and ``node``; for a
name server ``group`` is ``name-servers``, for a spare node that waits it is ``spares``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Place = Literal["node", "name server", "spare"]

PREFIX = "dledger_"
PLACE_LABELS = ("group", "node")
OTHERS = "(other)"  # value of a label under which everything is summed that has no series of its own

NODE: tuple[Place, ...] = ("node",)
ALL: tuple[Place, ...] = ("node", "name server", "spare")
_PLACES: dict[str, tuple[Place, ...]] = {"nodes": NODE, "name servers": ("name server",), "all": ALL}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is scraped, without ``_bucket``, ``_sum`` and ``_count`` of a histogram.
        kind: counter, gauge or histogram.
        help: What it says; one sentence.
        labels: Beside ``group`` and ``node``.
        on: Which processes have it.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    on: tuple[Place, ...] = NODE

    @property
    def unit(self) -> str:
        """seconds, bytes, messages, entries ... as the name says; empty for a plain number."""
        words = self.name.removesuffix("_total").split("_")
        known = ("seconds", "bytes", "ratio", "messages", "entries")
        return next((word for word in reversed(words) if word in known), "")


_read = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
METRICS = tuple(
    Metric(PREFIX + name, row["kind"], row["help"], tuple(row.get("labels", ())), _PLACES[row.get("on", "nodes")])
    for name, row in _read["metrics"].items()
)
BY_NAME = {metric.name: metric for metric in METRICS}

# Values of the label ``kind`` of ``dledger_alarm``.
ALARMS: dict[str, str] = _read["alarms"]
