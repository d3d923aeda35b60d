"""One measured figure with what was checked about it, as the workers report it and the JSON file has it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one work with one system.  What a work does not measure is None.

    ``way``: ``single``, message by message, or ``many`` at once.  ``cpu``: processor seconds of the client and of all servers.
    ``load``: the machine's load average of a minute when it began, which tells whether others used it, too.
    """

    system: str
    work: str
    way: str
    size: str
    messages: int
    took_s: float
    client_cpu_s: float
    servers_cpu_s: float
    load: float = 0.0
    acknowledged: int | None = None
    bytes: int | None = None
    distinct: int | None = None
    lost: int | None = None
    doubled: int | None = None
    strange: int | None = None
    failed: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    pause_s: float | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.took_s if self.took_s else 0.0

    @property
    def client_cpu_per_million_s(self) -> float:
        return self.client_cpu_s / self.messages * 1e6

    @property
    def servers_cpu_per_million_s(self) -> float:
        return self.servers_cpu_s / self.messages * 1e6

    def problem(self) -> str:
        """What is wrong with it, so that it must not be compared; empty when nothing is."""
        said = []
        if self.work == "produce" and self.acknowledged != self.messages:
            said.append(f"{self.messages - (self.acknowledged or 0)} of {self.messages} not acknowledged")
        if self.work == "consume" and self.distinct != self.messages:
            said.append(f"{self.messages - (self.distinct or 0)} of {self.messages} did not come")
        if self.lost:
            said.append(f"{self.lost} acknowledged messages lost")
        if self.doubled:
            said.append(f"{self.doubled} doubled")
        if self.strange:
            said.append(f"{self.strange} differ from what was sent")
        if self.work == "failover" and self.pause_s is None:
            said.append("no write was acknowledged after the kill")
        return "; ".join(said)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"messages_per_s": round(self.rate), "problem": self.problem()}
