"""The rules, boards and cluster files that ship for monitoring, as tests read them.

Owns how an expression is taken apart: into the selectors that stand in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROMETHEUS, GRAFANA = ROOT / "cluster-configs" / "prometheus", ROOT / "cluster-configs" / "grafana"
BOARD_FILES = sorted(GRAFANA.glob("*.json"))
SELECTOR = re.compile(r"(?<![\w:$\"])((?:[a-z_]+:)?dledger_\w+(?::\w+)?|up|ALERTS)\b(\{[^}]*\})?(?![\w(])")
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")


@dataclass(frozen=True)
class Rule:
    """One rule; ``name`` is the alert's or that of the series it records."""

    file: str
    name: str
    expr: str
    severity: str
    annotations: dict[str, str]

    @property
    def is_alert(self) -> bool:
        return bool(self.severity)


@dataclass(frozen=True)
class Shown:
    """One expression of a board, as it stands there."""

    board: str
    panel: str
    expr: str


@dataclass(frozen=True)
class Selector:
    """``metric{matchers}`` of an expression."""

    metric: str
    text: str
    labels: tuple[str, ...]


def rules() -> list[Rule]:
    found = []
    for file in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                name, severity = rule.get("alert", rule.get("record", "")), rule.get("labels", {}).get("severity", "")
                found.append(Rule(file, name, rule["expr"], severity, rule.get("annotations", {})))
    return found


def boards() -> dict[str, dict[str, Any]]:
    """Name of the file -> the board."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in BOARD_FILES}


def shown() -> list[Shown]:
    """Every expression of every board: of panels, annotations and variables' metrics."""
    found = []
    for name, board in boards().items():
        found += [Shown(name, panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
        found += [Shown(name, each["name"], each["expr"]) for each in board["annotations"]["list"]]
        asked = [each for each in board["templating"]["list"] if each["type"] == "query"]
        found += [Shown(name, f"${each['name']}", re.sub(r"label_values\((.*), \w+\)", r"\1", each["definition"])) for each in asked]
    return found


def selectors(expr: str) -> list[Selector]:
    """What ``expr`` takes from Prometheus."""
    found = []
    for match in SELECTOR.finditer(expr):
        labels = tuple(each[0] for each in MATCHER.findall(match[2] or ""))
        found.append(Selector(match[1], match[0], labels))
    return found
