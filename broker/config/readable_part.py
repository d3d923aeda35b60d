"""What can be read of a cluster file with mistakes: enough to ask nodes for their state, never enough to run one.

Owns what is left out: the settings at which a mistake stands.  One in ``security``, or in the name of a block, leaves nothing: without
``security`` clients might speak in plaintext.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from broker.config.cluster_file import ClusterConfig, read_cluster_text
from broker.config.yaml_marks import Location, MarkedYaml
from dledger_wire.errors import ConfigError

MOST_LEFT_OUT = 100


def readable_part(path: str) -> tuple[ClusterConfig, str]:
    """The cluster of a file, and its mistakes, which are left out; empty when there are none.  ConfigError when no address can be read."""
    text = read_cluster_text(path)
    try:
        return ClusterConfig.parse(text, path), ""
    except ConfigError as error:
        mistakes = error
    found = _part(text, path)
    if found is None:
        raise ConfigError(f"{mistakes.message}; without the file: --bootstrap HOST:PORT,...") from None
    return found, mistakes.message


def _part(text: str, path: str) -> ClusterConfig | None:
    try:
        data = MarkedYaml(text, path).data
    except ConfigError:
        return None
    for _ in range(MOST_LEFT_OUT):
        try:
            return ClusterConfig.model_validate(data).read_from(path)
        except ValidationError as error:
            mistake = error.errors()[0]
            location = mistake["loc"]
            may_be_security = location[:1] == ("security",) or (len(location) == 1 and mistake["type"] == "extra_forbidden")
            if may_be_security or not _leave_out(data, location):
                return None
    return None


def _leave_out(data: Any, location: Location) -> bool:
    """Remove what stands at ``location``, or what lacks it; whether there was something."""
    place: Any = None
    last: str | int = ""
    for part in location:
        holds = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not holds:
            break
        place, last = data, part
        data = place[last]
    if place is None:
        return False
    del place[last]
    return True
