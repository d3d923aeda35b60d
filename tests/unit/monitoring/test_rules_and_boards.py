"""The shipped alerts, recording rules and boards against the catalogue of metrics, the guide, and each other.

A real Prometheus reads them in ``tests/cluster/monitoring``.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.metrics.catalog import BY_NAME, METRICS, Metric
from tests.monitoring_files import PROMETHEUS, ROOT, Rule, boards, rules, selectors, shown

OF_PROMETHEUS = {"up": {"job"}, "ALERTS": {"alertstate", "alertname"}}
OF_TARGETS = {"cluster", "group", "node", "instance", "job"}
RECORDED = {rule.name for rule in rules() if not rule.is_alert}
ALERTS = [rule for rule in rules() if rule.is_alert]
EXPRESSIONS = [(f"{rule.file} {rule.name}", rule.expr) for rule in rules()]
EXPRESSIONS += [(f"{each.board}.json {each.panel}", each.expr) for each in shown()]


def metric_of(name: str) -> Metric | None:
    """A histogram is scraped as three series."""
    found = BY_NAME.get(name)
    if found is None:
        found = BY_NAME.get(re.sub(r"_(bucket|sum|count)$", "", name))
        return found if found is not None and found.kind == "histogram" else None
    return found if found.kind != "histogram" else None


def test_every_expression_asks_for_series_and_labels_that_there_are() -> None:
    wrong = []
    for where, expr in EXPRESSIONS:
        found = selectors(expr)
        assert found, f"{where}: no series in {expr}"
        for each in found:
            metric = metric_of(each.metric)
            if metric is None and each.metric not in RECORDED | set(OF_PROMETHEUS):
                wrong.append(f"{where}: no metric {each.metric}")
                continue
            labels = OF_TARGETS | set(metric.labels if metric else OF_PROMETHEUS.get(each.metric, ()))
            wrong += [f"{where}: {each.metric} has no label {label}" for label in each.labels if label not in labels]
    assert not wrong, "\n".join(wrong)


def test_counters_are_read_as_counters_and_gauges_as_gauges() -> None:
    """A rate of a gauge, or a sum of a counter since some start, is a figure that means nothing."""
    plain = {"dledger_log_corruptions_total", "dledger_log_repairs_total", "dledger_log_truncations_total", "dledger_dlq_messages_total"}
    rising = {"dledger_raft_commit_index"}
    wrong = []
    for where, expr in EXPRESSIONS:
        for each in selectors(expr):
            metric = metric_of(each.metric)
            if metric is None or where.partition(" ")[2].startswith("$"):
                continue
            is_rate = re.search(rf"(rate|increase|changes)\({re.escape(each.text)}\[", expr) is not None
            if is_rate and metric.kind == "gauge" and metric.name not in rising:
                wrong.append(f"{where}: a rate of the gauge {each.metric}")
            if not is_rate and metric.kind != "gauge" and metric.name not in plain:
                wrong.append(f"{where}: {each.metric} is a counter")
    assert not wrong, "\n".join(wrong)


def test_every_metric_is_shown_somewhere() -> None:
    used = {each.metric for _where, expr in EXPRESSIONS for each in selectors(expr)}
    names = {metric.name for metric in map(metric_of, used) if metric is not None}
    assert {metric.name for metric in METRICS} - names == set()


def test_no_metric_shares_the_name_of_a_series_that_prometheus_makes() -> None:
    assert not RECORDED & set(BY_NAME)
    assert all(re.fullmatch(r"\w+:dledger_\w+:\w+", name) for name in RECORDED)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_says_what_is_wrong_and_the_guide_says_what_to_do(alert: Rule) -> None:
    assert alert.severity in ("critical", "warning", "info")
    assert set(alert.annotations) == {"summary", "description", "runbook"}
    file, _, named = alert.annotations["runbook"].partition(", section ")
    assert named == alert.name
    guide = (ROOT / file).read_text(encoding="utf-8")
    section = re.search(rf"^### {alert.name}\n(.*?)(?=^##|\Z)", guide, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{file} has no section {alert.name}"
    assert len(section[1].split()) > 20, f"{file} says nothing of {alert.name}"


def test_the_command_of_the_guide_makes_a_link_of_each_runbook(tmp_path: Path) -> None:
    """With the anchor that the page has for the section."""
    guide = (ROOT / "docs" / "guides" / "operate" / "monitor.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^sed .*runbook.*$", guide, re.MULTILINE)
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    anchors = {title.lower() for title in re.findall(r"^### (\w+)$", guide, re.MULTILINE)}  # a single word is its own anchor
    links: dict[str, str] = {}
    for group in yaml.safe_load((tmp_path / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        links |= {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"]}
    assert links == {alert.name: f"https://docs.example.org/guides/operate/monitor.html#{alert.name.lower()}" for alert in ALERTS}
    assert {link.partition("#")[2] for link in links.values()} <= anchors


def test_the_guide_has_no_section_of_an_alert_that_is_gone() -> None:
    guide = (ROOT / "docs" / "guides" / "operate" / "monitor.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Dledger\w+)$", guide, re.MULTILINE)) == {alert.name for alert in ALERTS}


def test_every_alert_is_raised_by_made_up_series() -> None:
    """alerts_test.yml, which promtool runs."""
    raised = set()
    for case in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]:
        for check in case["promql_expr_test"]:
            labels = [dict(re.findall(r"(\w+)=\"([^\"]*)\"", each["labels"])) for each in check["exp_samples"]]
            raised |= {(each["alertname"], each["severity"]) for each in labels}
    assert raised == {(alert.name, alert.severity) for alert in ALERTS}


@pytest.mark.parametrize(("name", "board"), boards().items())
def test_a_board_is_whole(name: str, board: dict[str, Any]) -> None:
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    for (first, a), (second, b) in itertools.combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, f"{name}: {first!r} covers {second!r}"
    assert all(place["x"] + place["w"] <= 24 for _title, place in places)
    variables = {each["name"] for each in board["templating"]["list"]}
    exprs = [each.expr for each in shown() if each.board == name]
    used = {found for expr in exprs for found in re.findall(r"\$(\w+)", expr)} - {"__rate_interval"}
    assert used <= variables, f"{name}: {used - variables} are no variables of the board"
    assert variables - used == {"datasource"}
    for panel in board["panels"]:
        legends = [target["legendFormat"] for target in panel.get("targets", ())]
        assert len(set(legends)) == len(legends), f"{name}: two queries of {panel['title']!r} have one name"


def test_boards_have_names_of_their_own() -> None:
    made = boards()
    assert len({board["uid"] for board in made.values()}) == len({board["title"] for board in made.values()}) == len(made) == 4


def test_the_scrape_config_names_what_the_rules_take_for_granted() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["honor_labels"], config["rule_files"]) == ("dledger", True, ["recording.yml", "alerts.yml"])
    assert all(set(each["labels"]) == {"cluster", "group", "node"} for each in job["static_configs"])
