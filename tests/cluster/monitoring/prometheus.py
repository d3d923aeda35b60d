"""A real Prometheus of a test's own: the shipped files with the test's targets, and alerts that wait for a second at most.

Owns its process, its folder and what is asked of it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from dledger_cli.local.ports import free_ports
from tests import needs
from tests.monitoring_files import PROMETHEUS
from tests.waiting import wait_until

Series = list[dict[str, Any]]


class Prometheus:
    """``targets``: node -> (group, HOST:PORT of its metrics).  ``more`` goes into the scrape config: TLS, a user.

    As a context manager it runs inside, and its process is ended after.
    """

    def __init__(self, folder: Path, targets: dict[str, tuple[str, str]], more: dict[str, Any] | None = None) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        job |= copy.deepcopy(more or {})
        job["static_configs"] = [
            {"targets": [address], "labels": {"cluster": "tested", "group": group, "node": node}}
            for node, (group, address) in targets.items()
        ]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        shutil.copy(PROMETHEUS / "recording.yml", folder)
        alerts = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
        (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", alerts), encoding="utf-8")
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        program = needs.program("prometheus")
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_ready, self.log_text)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log_text(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_text()
        with contextlib.suppress(OSError, urllib.error.URLError):
            return bool(urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).status == 200)
        return False

    def ask(self, path: str, **parameters: str) -> Any:
        """``data`` of an answer of its HTTP API; fails with what it says is wrong."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None

    def query(self, expr: str) -> Series:
        """What ``expr`` gives now: a list of ``{"metric": labels, "value": [time, text]}``."""
        answer = self.ask("query", query=expr)
        if answer["resultType"] == "scalar":
            return [{"metric": {}, "value": answer["result"]}]
        return list(answer["result"])

    def value(self, expr: str) -> float:
        """Of the one series that ``expr`` gives; NaN when there is none."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if len(found) == 1 else float("nan")

    def _all_firing(self, **labels: str) -> list[dict[str, Any]]:
        """Every series of an alert that fires with these labels."""
        return [each for each in self.ask("alerts")["alerts"] if each["state"] == "firing" and labels.items() <= each["labels"].items()]

    def firing(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(alert, severity) -> the alert, of one of its series, of all that fire."""
        return {(alert["labels"]["alertname"], alert["labels"]["severity"]): alert for alert in self._all_firing()}

    def wait_firing(self, name: str, severity: str, **labels: str) -> dict[str, Any]:
        """Wait until the alert fires with these labels; the alert."""

        def found() -> dict[str, Any] | None:
            return next(iter(self._all_firing(alertname=name, severity=severity, **labels)), None)

        alert = wait_until(found, lambda: f"{name} {severity} {labels}; firing: {sorted(self.firing())}", pause_s=0.2)
        assert alert is not None
        texts = alert["annotations"]
        assert "error expanding template" not in str(texts)
        assert "no value" not in str(texts)
        return alert

    def wait_quiet(self, *names: str, **labels: str) -> None:
        """Wait until none of these alerts fires with these labels."""

        def still_firing() -> list[dict[str, str]]:
            return [alert["labels"] for name in names for alert in self._all_firing(alertname=name, **labels)]

        wait_until(lambda: not still_firing(), lambda: f"an end of {still_firing()}")
