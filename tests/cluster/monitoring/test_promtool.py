"""What promtool says of the shipped files: they are right, and each alert is raised by series made for it, and only then."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.monitoring_files import PROMETHEUS
from tests.waiting import LIMIT_S


def promtool(*arguments: str | Path) -> str:
    """Its output; the test fails when it finds something wrong."""
    done = subprocess.run([needs.program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_scrape_config_and_rules_are_right() -> None:
    assert "2 rule files found" in promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", PROMETHEUS / "recording.yml", PROMETHEUS / "alerts.yml")


def test_alerts_fire_when_they_must_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", PROMETHEUS / "alerts_test.yml")


def test_an_alert_whose_threshold_is_not_reached_any_more_is_found(tmp_path: Path) -> None:
    """The test of the rules can fail."""
    for name in ("alerts.yml", "recording.yml", "alerts_test.yml"):
        shutil.copy(PROMETHEUS / name, tmp_path)
    alerts = tmp_path / "alerts.yml"
    text = alerts.read_text(encoding="utf-8")
    alerts.write_text(
        text.replace("max by (cluster, group) (dledger_raft_has_leader) == 0", "dledger_raft_has_leader == 2"), encoding="utf-8"
    )
    with pytest.raises(AssertionError, match="DledgerNoLeader"):
        promtool("test", "rules", tmp_path / "alerts_test.yml")
