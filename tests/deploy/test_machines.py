"""The hosts that the tests of deployments use: they boot, reach each other, keep their files, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

from tests.machines import Lab
from tests.waiting import wait_until

# Without a stop timeout it is started again only once systemd knows that no process of it is left.
SERVICE = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh -c 'sleep infinity & exec sleep infinity'
KillMode=mixed
TimeoutStopSec=infinity
Restart=always
RestartSec=0
"""
KILLS = 12


def test_hosts_boot_reach_each_other_and_keep_what_they_wrote(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", ["a0", "a1"]) as lab:
        ssh = ["ssh", "-i", str(lab.ssh_key), "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known", "root@a0"]
        assert lab.run([*ssh, "cat /proc/1/comm; hostname"]).stdout.split() == ["systemd", "a0"]
        lab["a1"].write("/srv/note", "kept\n")
        lab["a1"].run("sync")
        lab["a1"].reboot()
        assert lab["a1"].run("cat /srv/note").stdout == "kept\n"
        lab["a1"].pull_the_plug()
        lab["a1"].boot()
        lab["a1"].wait_running()
        assert lab["a1"].run("cat /srv/note").stdout == "kept\n"
        assert "127.0.0.1" in lab["a1"].run("getent hosts localhost a0").stdout
        assert lab["a1"].run("ip route get 192.0.2.1", check=False).returncode != 0, "a host reaches the world outside"


def test_a_service_that_is_killed_beside_its_child_starts_again_at_once(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", ["a0"]) as lab:
        host = lab["a0"]
        host.write("/etc/systemd/system/pair.service", SERVICE)
        host.run("systemctl daemon-reload && systemctl start pair")
        for number in range(1, KILLS + 1):
            host.run("systemctl kill --signal=KILL --kill-whom=main pair")
            wanted = f"NRestarts={number}\nActiveState=active\n"
            wait_until(
                lambda wanted=wanted: host.run("systemctl show --property=NRestarts,ActiveState pair").stdout == wanted,
                lambda: f"pair is started again: {host.run('systemctl status --no-pager pair', check=False).stdout}",
            )
