"""What can be read of a cluster file with mistakes: enough to ask nodes for their state, never enough to run one.

Owns what is left out: the settings at which a mistake stands.  One in ``security``, or in the name of a block, leaves nothing: without
``security`` clients might speak in plaintext.
"""

from __future__ import annotations

from broker.config.cluster_file import ClusterConfig, read_cluster_text
from broker.config.model import Mistakes
from broker.config.yaml_marks import MarkedYaml, Problem
from dledger_wire.errors import ConfigError


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
    left_out: list[Problem] = []
    try:
        found = ClusterConfig.made(MarkedYaml(text, path).data, left_out=left_out)
    except (ConfigError, Mistakes):
        return None
    names = ClusterConfig.names() - {"security"}
    return None if any(problem.location[0] not in names for problem in left_out) else found.read_from(path)
