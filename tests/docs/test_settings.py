"""docs/reference/configuration.md against the models: every setting has a row with its default, and no row is without a setting."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from broker.config.cluster_file import ClusterConfig, GroupConfig, NodeConfig, RaftConfig, ServiceConfig, StoreConfig
from broker.config.console import ConsoleConfig
from broker.config.metrics import MetricsConfig
from broker.config.model import ConfigModel
from broker.config.name_servers import NameServerConfig, NameServiceConfig
from broker.config.replicas import ReplicasConfig, SpareConfig
from broker.config.security import AuditConfig, LimitsConfig, SecurityConfig, TlsConfig, UsersConfig
from broker.config.units import parse_duration_ms, parse_size

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(
    re.findall(r"^\| `(?:groups\[\]\.|nodes\[\]\.|replicas\.|name_servers\[\]\.|name_service\.)?(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE)
)
CONSOLE_ROWS = dict(re.findall(r"^\| `console\.(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
METRICS_ROWS = dict(re.findall(r"^\| `metrics\.(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
SECURITY_ROWS = dict(re.findall(r"^\| `security\.([\w.]+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
SECURITY: dict[str, type[ConfigModel]] = {
    "": SecurityConfig,
    "tls.": TlsConfig,
    "users.": UsersConfig,
    "limits.": LimitsConfig,
    "audit.": AuditConfig,
}
SECTIONS = {"name_service", "raft", "store", "broker", "replicas"}


def settings(model: type[ConfigModel]) -> dict[str, Field[Any]]:
    declared: Any = model  # a dataclass, which its base makes of it
    return {each.name: each for each in fields(declared)}


def is_required(field: Field[Any]) -> bool:
    return field.default is field.default_factory is MISSING


FIELDS = {
    name: field.default
    for model in (
        ClusterConfig,
        GroupConfig,
        SpareConfig,
        NodeConfig,
        RaftConfig,
        StoreConfig,
        ServiceConfig,
        ReplicasConfig,
        NameServerConfig,
        NameServiceConfig,
    )
    for name, field in settings(model).items()
    if name not in SECTIONS
}


def test_every_setting_has_a_row() -> None:
    assert set(ROWS) == set(FIELDS)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_row_has_the_default_of_the_model(name: str) -> None:
    shown, default = ROWS[name].strip().strip("`").strip('"'), FIELDS[name]
    if isinstance(default, bool):
        assert shown == str(default).lower()
    elif isinstance(default, int | float):
        number = shown.replace(" ", "")
        assert default == (parse_duration_ms(number) if number.endswith("h") else parse_size(number))
    elif isinstance(default, str):
        assert default.startswith("" if shown == "none" else shown.partition(" ...")[0])
    else:
        assert shown in {"required", "none", "address"}
        assert default in (MISSING, None)


def test_the_block_security_has_a_row_for_each_setting_with_its_default() -> None:
    found = {f"{section}{name}": field for section, model in SECURITY.items() for name, field in settings(model).items()}
    told = {name: shown.strip().strip("`") for name, shown in SECURITY_ROWS.items()}
    assert told.keys() == found.keys() - {"limits", "audit"}
    for name, shown in told.items():
        default = found[name].default
        expected = "required" if is_required(found[name]) else "none" if default in (None, MISSING) else str(default)
        assert shown.lower() == expected.lower(), name


def test_the_block_console_has_a_row_for_each_setting_with_its_default() -> None:
    assert CONSOLE_ROWS.keys() == ConsoleConfig.names()
    for name, field in settings(ConsoleConfig).items():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        expected = "required" if is_required(field) else str(default or "none") if not isinstance(default, bool) else str(default)
        assert CONSOLE_ROWS[name].strip().lower() == expected.lower(), name


def test_the_block_metrics_has_a_row_for_each_setting_with_its_default() -> None:
    told = {name: shown.strip() for name, shown in METRICS_ROWS.items()}
    assert told == {name: str(field.default).lower() for name, field in settings(MetricsConfig).items()}
