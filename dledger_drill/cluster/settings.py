"""Settings of a drill's own cluster, and what a file of a person lays over them."""

from __future__ import annotations

import re
from typing import Any

import yaml

from broker.config.cluster_file import ClusterConfig
from broker.config.yaml_marks import MarkedYaml
from dledger_cli.local.layout import content_of, layout_of, merged
from dledger_wire.errors import ConfigError

CLUSTER = "drill"
PORT, NAME_PORT, QUORUM_PORT = 10911, 9876, 9877
NAME_SERVERS = 3
OWN = frozenset({"cluster", "name_servers", "groups"})
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
# Small segments: some are sealed soon, and a full disk is felt when the next one is made.  Nothing deletes messages for want of space,
# which would look like a loss; what is older than an hour was judged long ago.
SETTINGS: dict[str, Any] = {
    "store": {
        "mappedFileSizeCommitLog": "512KiB",
        "maxMessageSize": "128KiB",
        "cleanFileForciblyEnable": False,
        "fileReservedTime": "1h",
        "deleteWhen": EVERY_HOUR,
    },
    "broker": {"transactionTimeOut": "1s", "transactionCheckInterval": "1s"},
}


def settings_of(text: str, file: str) -> dict[str, Any]:
    """Blocks of settings for a private cluster, from the text of a file; ConfigError with the line of what is wrong."""
    content = MarkedYaml(text, file).data
    if content is None:
        return {}
    if not isinstance(content, dict) or OWN & content.keys():
        raise ConfigError(f"{file}: expected blocks of settings such as store and raft; nodes and addresses are the drill's own")
    layout = layout_of(CLUSTER, 1, 1, NAME_SERVERS)
    names = [*layout.nodes, *layout.name_servers]
    addresses, quorum = ({name: f"127.0.0.1:{first + number}" for number, name in enumerate(names)} for first in (PORT, PORT + len(names)))
    own = content_of(layout, addresses, quorum, {}) | ({} if "name_service" in content else {"name_service": {"passwordFile": "/drill"}})
    try:
        ClusterConfig.parse(yaml.safe_dump(merged(own, merged(SETTINGS, content)), sort_keys=False), file)
    except ConfigError as error:
        behind = f"{text}\n{yaml.safe_dump(own, sort_keys=False)}"  # so that the lines of errors are those of the file
        if _is_yaml(behind):
            ClusterConfig.parse(behind, file)
        raise ConfigError(re.sub(rf"^{re.escape(file)}:\d+:", f"{file}:", error.message, flags=re.MULTILINE)) from None
    return content


def _is_yaml(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), dict)
    except yaml.YAMLError:
        return False
