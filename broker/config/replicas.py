"""Settings of replicas beyond one node's own: spare nodes, when a member that is away is replaced, labels of hosts and racks."""

from __future__ import annotations

import re
from typing import Annotated

from broker.config.model import ConfigModel
from broker.config.values import DAY_MS, Address, ListenAddress, Name, duration, split_address

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MIN_REPLACE_MS = 1_000  # a few election timeouts: less would replace a member that restarts


def _label(value: object) -> str:
    if not isinstance(value, str) or (value and not _LABEL.fullmatch(value)):
        raise ValueError(f"expected a label of letters, digits, ., _ and -, at most 128 long, got {value!r}")
    return value


def _replace_after(value: object) -> int:
    """A duration, or off; YAML reads an unquoted off as false."""
    if value is False or value in (0, "off"):
        return 0
    return duration(_MIN_REPLACE_MS, 365 * DAY_MS)(value)


Label = Annotated[str, _label]
ReplaceAfter = Annotated[int, _replace_after]


class ServerConfig(ConfigModel):
    """A process of the cluster: where it is reached, where it listens when that is elsewhere (a container, NAT), and where it runs."""

    id: Name
    address: Address
    listen: ListenAddress | None = None
    host: Label = ""
    rack: Label = ""
    metrics: ListenAddress | None = None

    @property
    def host_label(self) -> str:
        """The machine it runs on: its label, or else the host of its address."""
        return self.host or split_address(self.address)[0]


class SpareConfig(ServerConfig):
    """A node of the cluster that belongs to no replica group yet."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens."""
        return (self.listen or self.address,)


class ReplicasConfig(ConfigModel):
    """What holds for all replica groups, unless a group says otherwise."""

    replaceAfter: ReplaceAfter = 0
