"""The units for systemd agree with the program that they start; tests/deploy/test_deploy_guide.py runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.main import STOP_GRACE_S
from broker.process.service_manager import EVERY_S, PATIENCE_S, WATCHDOG_BEATS

FOLDER = Path(__file__).resolve().parents[3] / "cluster-configs" / "systemd"
UNITS = ("dledger@.service", "dledger-nameserver@.service")


def service(name: str) -> dict[str, str]:
    """The section Service of a unit; of a setting that stands twice both values, a line each."""
    settings: dict[str, str] = {}
    section = ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            settings[key] = f"{settings[key]}\n{value}" if key in settings else value
    return settings


@pytest.mark.parametrize("name", UNITS)
def test_the_times_of_a_unit_fit_those_of_the_process(name: str) -> None:
    found = service(name)
    assert found["Type"] == "notify"
    assert float(found["TimeoutStopSec"]) > STOP_GRACE_S
    assert float(found["TimeoutStartSec"]) > PATIENCE_S
    assert float(found["WatchdogSec"]) / WATCHDOG_BEATS > EVERY_S


def test_both_units_allow_the_same() -> None:
    """Beside what a node has and a name server has not: a console, messages, leadership."""
    node, server = (service(name) for name in UNITS)
    own = {"ExecStart", "UMask", "TimeoutStopSec", "OOMPolicy"}
    assert {key: value for key, value in node.items() if key not in own} == {key: value for key, value in server.items() if key not in own}


def test_unit_user_and_folders_name_the_same() -> None:
    for name in UNITS:
        found = service(name)
        assert found["User"] == found["Group"] == "dledger"
        assert f"--data /var/lib/{found['StateDirectory']}" in found["ExecStart"]
    assert (FOLDER / "dledger.sysusers.conf").read_text(encoding="utf-8").splitlines()[-1].startswith("u dledger ")
    owned = [line.split()[1:5] for line in (FOLDER / "dledger.tmpfiles.conf").read_text(encoding="utf-8").splitlines() if line[0] in "dz"]
    assert ["/var/lib/dledger", "0750", "dledger", "dledger"] in owned
    assert ["/etc/dledger/certs/*.key", "0600", "dledger", "dledger"] in owned
