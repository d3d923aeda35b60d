"""Writes Grafana boards as JSON: where panels stand, what each kind looks like, which variables a board has.

What the panels show stands in ``board_panels.py``.  The format is that of Grafana 9 and newer (schema 37).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import board_panels
from board_panels import Board, Panel

FOLDER = Path(__file__).resolve().parents[2] / "cluster-configs" / "grafana"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LINK = {"type": "dashboards", "title": "dledger", "tags": ["dledger"], "asDropdown": False, "keepTime": True, "includeVars": True}
# What a variable may be: of the series of one metric that every process, or every one of its kind, has.
VARIABLES = {
    "cluster": "label_values(dledger_build_info, cluster)",
    "group": 'label_values(dledger_raft_term{cluster=~"$cluster"}, group)',
    "node": 'label_values(dledger_raft_term{cluster=~"$cluster", group=~"$group"}, node)',
    "topic": 'label_values(dledger_messages_in_total{cluster=~"$cluster"}, topic)',
    "consumer_group": 'label_values(dledger_consumer_lag_messages{cluster=~"$cluster"}, consumer_group)',
}


def board_json(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": _place(0, y, WIDTH, 1)})
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(_panel(panel) | {"gridPos": _place(x, y, panel.width, panel.height)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["dledger"],
        "links": [LINK],
        "schemaVersion": 37,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_leader_changes()]},
        "templating": {"list": [_data_source(), *(_variable(name) for name in board.variables)]},
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend, "range": True}
        for place, query in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    found: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }
    if panel.limits:
        steps = [{"color": "green", "value": None}, *({"color": color, "value": value} for value, color in panel.limits)]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.kind == "timeseries":
        defaults |= {"min": 0, "custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False}}
        found["options"] = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi"},
        }
    elif panel.kind == "stat":
        found["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    elif panel.kind == "state-timeline":
        options = {text: {"text": words, "color": color, "index": place} for place, (text, words, color) in enumerate(panel.states)}
        defaults |= {"mappings": [{"type": "value", "options": options}], "custom": {"fillOpacity": 80, "lineWidth": 0}}
        found["options"] = {"showValue": "never", "mergeValues": True, "rowHeight": 0.8}
    elif panel.kind == "table":
        _as_table(found, panel)
    return found


def _as_table(found: dict[str, Any], panel: Panel) -> None:
    """One line a node: the queries' newest values side by side, joined by their labels."""
    for target in found["targets"]:
        target |= {"format": "table", "instant": True, "range": False}
    letters = [target["refId"] for target in found["targets"]]
    names = {f"Value #{letter}": query.legend for letter, query in zip(letters, panel.queries, strict=True)}
    found["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
    ]
    found["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": query.legend}, "properties": [{"id": "unit", "value": query.unit}]}
        for query in panel.queries
        if query.unit
    ]


def _leader_changes() -> dict[str, Any]:
    return {
        "name": "changes of leader",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": 'max by (cluster, group) (changes(dledger_raft_leader_changes_total{cluster=~"$cluster"}[1m])) > 0',
        "step": "30s",
        "titleFormat": "another leader of {{group}}",
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.replace("_", " "),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": VARIABLES[name], "refId": name},
        "definition": VARIABLES[name],
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    made = {FOLDER / f"{board.file}.json": json.dumps(board_json(board), indent=1) + "\n" for board in board_panels.BOARDS}
    if "--check" in sys.argv:
        stale = [file.name for file, text in made.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
        stale += [file.name for file in FOLDER.glob("*.json") if file not in made]
        if stale:
            sys.exit(f"not what scripts/lib/board_panels.py says: {', '.join(sorted(stale))}; run scripts/gen-boards")
        return
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
