"""What a workload process is to do: the JSON it is started with, and what it is sent on its stdin, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from dledger_client import TlsSettings
from dledger_client.types import SecuritySettings
from dledger_wire.errors import InvalidArgumentError

# Operations a second of each workload.  All together take less than 60 % of a core.
DEFAULT_RATES = {
    "probe": 50.0,
    "plain": 20.0,
    "keyed": 40.0,
    "idempotent": 40.0,
    "transactional": 6.0,
    "delayed": 6.0,
    "pull": 6.0,
    "follower": 6.0,
    "offsets": 4.0,
    "admin": 0.5,
    "spark-batch": 0.1,
}
WORKLOADS = (
    "plain",
    "keyed",
    "idempotent",
    "transactional",
    "delayed",
    "push",
    "orderly",
    "pull",
    "follower",
    "offsets",
    "admin",
    "spark-batch",
    "spark-stream",
)
DEFAULT_WORKLOADS = tuple(name for name in WORKLOADS if not name.startswith("spark-"))


def check_workloads(names: Sequence[str]) -> None:
    """Raises InvalidArgumentError for a name that is none, and for delayed messages that are not waited for before the audit."""
    for name in names:
        if name not in WORKLOADS:
            raise InvalidArgumentError(f"workload {name!r}: expected some of {', '.join(WORKLOADS)}")
    if "delayed" in names and not {"push", "orderly"} & set(names):
        raise InvalidArgumentError("workload delayed: expected together with push or orderly, consumers that wait for its messages")


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The settings of one workload process.  The probes of the replica groups always run.

    Args:
        bootstrap: Addresses of nodes or name servers.
        groups: The replica groups; each has a probe.
        prefix: Begins the names of topics and consumer groups; another one for each segment of a drill.
        rates: Operations a second that differ from ``DEFAULT_RATES``; of a producer: for each process.
        first_number: Number of each process's first message, so that values are unique in a drill of several segments.
        ca, cert, key: Files for TLS; without ``ca`` there is none.
        drain_s: How long consumers may take for the next of what they were not given yet when the producers stopped.
        history: Name of the history file.
        delete_topics: Delete the topics after the audit.
    """

    bootstrap: str
    groups: tuple[str, ...]
    workloads: tuple[str, ...] = DEFAULT_WORKLOADS
    prefix: str = "drill"
    rates: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    first_number: int = 0
    queues_per_group: int = 2
    ca: str = ""
    cert: str = ""
    key: str = ""
    drain_s: float = 60.0
    history: str = "load.jsonl.gz"
    delete_topics: bool = False

    def __post_init__(self) -> None:
        check_workloads(self.workloads)
        for name, rate in self.rates.items():
            if name not in DEFAULT_RATES or not rate > 0:
                raise InvalidArgumentError(f"rate {name}={rate}: expected a positive number for one of {', '.join(DEFAULT_RATES)}")
        if not self.groups:
            raise InvalidArgumentError("groups: expected the names of the replica groups")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises InvalidArgumentError for a file that is none."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**content | {"groups": tuple(content["groups"]), "workloads": tuple(content.get("workloads", DEFAULT_WORKLOADS))})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgumentError(f"{path}: not the settings of a workload process: {error}") from error

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def rate(self, workload: str) -> float:
        return self.rates.get(workload, DEFAULT_RATES[workload])

    def topic(self, workload: str) -> str:
        return f"{self.prefix}-{workload}"

    @property
    def read_topic(self) -> str:
        """The topic that readers read: one that producers write all the time."""
        return self.topic(next((name for name in ("keyed", "idempotent", "plain") if name in self.workloads), "probe"))

    @property
    def security(self) -> SecuritySettings:
        return {"tls": TlsSettings(ca=self.ca, cert=self.cert, key=self.key)} if self.ca else {}


@dataclass(frozen=True, slots=True)
class Command:
    """One of: a round begins; everything ends."""

    round: int | None = None
    finish: bool = False

    def encode(self) -> bytes:
        fields = {"round": self.round, "finish": self.finish or None}
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode() + b"\n"


def parse_command(line: bytes) -> Command:
    """Raises InvalidArgumentError for anything else."""
    try:
        return Command(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"command {line!r}: expected round or finish: {error}") from error
