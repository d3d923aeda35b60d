"""Changes of a cluster file as text: replica groups added and taken out, and the file replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import yaml

from broker.config.cluster_file import read_cluster_text
from broker.process.private_folder import FILE_MODE
from dledger_cli.local.yaml_text import WIDTH, with_items, with_value, without_item
from dledger_wire.errors import ConfigError, DataDirectoryError


def groups_in(path: str) -> list[dict[str, Any]]:
    """The replica groups of a file that holds one (name, nodes), a list of them, or a whole cluster (groups)."""
    try:
        data = yaml.safe_load(read_cluster_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if isinstance(data, dict) and "groups" in data:
        data = data["groups"]
    groups = data if isinstance(data, list) else [data]
    if not groups or not all(isinstance(group, dict) and "name" in group for group in groups):
        raise ConfigError(f"{path}: expected a replica group with name and nodes, a list of them, or a cluster file with groups")
    return groups


def with_groups(text: str, groups: list[dict[str, Any]]) -> str:
    """The cluster file with those groups that it lacks."""
    missing = _missing(text, groups)
    return with_items(text, "groups", missing) if missing else text


def lines_to_add(text: str, groups: list[dict[str, Any]]) -> str:
    """Those groups that the cluster file lacks, as lines of its list of groups; empty when it lacks none."""
    missing = _missing(text, groups)
    return yaml.safe_dump(missing, sort_keys=False, default_flow_style=None, width=WIDTH).rstrip() if missing else ""


def _missing(text: str, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {group.get("name") for group in yaml.safe_load(text)["groups"]}
    return [group for group in groups if group["name"] not in names]


def without_group(text: str, name: str) -> str:
    """The cluster file without that group."""
    names = [group.get("name") for group in yaml.safe_load(text)["groups"]]
    return without_item(text, "groups", names.index(name)) if name in names else text


def moved(text: str, source: Path) -> str:
    """The cluster file at ``source`` as it reads in another folder: relative paths of its block ``security`` still begin in its own."""
    security = yaml.safe_load(text).get("security")
    if not isinstance(security, dict):
        return text
    folder = str((source.resolve().parent / str(security.get("folder", "."))).resolve())
    return text if security.get("folder") == folder else with_value(text, "security", "folder", folder)


def replace_file(file: Path, text: str, source: Path | None = None) -> None:
    """Replace a file in one step: readers find the old or the new one.

    It is readable for those who could read ``source``, or the old one; with a block ``security`` for its owner alone.
    """
    mode = FILE_MODE if "security" in yaml.safe_load(text) else _mode_of(source or file)
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        now = stat.S_IMODE(file.stat().st_mode)
        if now & ~mode:  # it was opened to others
            os.chmod(file, now & mode)
        return
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)  # what a killed command left has a mode of its own
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise DataDirectoryError(f"{file} cannot be written: {error.strerror}") from error


def _mode_of(file: Path) -> int:
    """The users that may read and write a file; the owner always."""
    return stat.S_IMODE(file.stat().st_mode) & 0o666 | FILE_MODE
