"""One host: systemd as its first process, its own files over the shared tree, one network device, sshd.

Owns its life: boot, reboot, power loss.  What it wrote survives all three, as on a disk.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from tests.machines.base import base_tree
from tests.machines.namespaces import Namespaces
from tests.waiting import wait_until

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The second part of a boot, inside the new namespaces.  /dev has what a container's has: devices of this machine are not the host's.
_BOOT = """
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir={base},upperdir={own}/upper,workdir={own}/work" "{own}/root"
cd "{own}/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t cgroup2 cgroup2 sys/fs/cgroup
hostname "{name}"
mkdir -p run/host
pivot_root . run/host
umount -l /run/host
exec env -i container=namespaces PATH={path} /lib/systemd/systemd --log-target=console --show-status=no
"""


class Host:
    """A host of a lab; ``Lab.add`` makes it."""

    def __init__(self, name: str, address: str, folder: Path, network: Namespaces, authorized: Path) -> None:
        self.name = name
        self.address = address
        self.hosts_text = ""
        self._folder = folder
        self._network = network
        self._authorized = authorized
        self._system: Namespaces | None = None

    # Life

    def boot(self) -> None:
        """Start it; ``wait_running`` waits until it has."""
        own, base = self._folder, base_tree()
        for part in ("upper/etc", "upper/root/.ssh", "work", "root"):
            (own / part).mkdir(parents=True, exist_ok=True)
        (own / "upper" / "root").chmod(0o700)
        (own / "upper" / "etc" / "hostname").write_text(self.name + "\n", encoding="utf-8")
        (own / "upper" / "etc" / "hosts").write_text(self.hosts_text, encoding="utf-8")
        shutil.copy(self._authorized, own / "upper" / "root" / ".ssh" / "authorized_keys")
        groups = self._control_group()
        groups.mkdir(exist_ok=True)
        script = _BOOT.format(base=base, own=own, name=self.name, path=_PATH)
        join = ["sh", "-c", f"echo 0 > '{groups}/cgroup.procs' && exec \"$@\"", "sh"]
        self._system = system = Namespaces.boot(script, join, own / "console", "systemd")
        wire = f"to-{self.name}"
        self._in_network(f"ip link add {wire} type veth peer name eth0 netns {system.pid}")
        self._in_network(f"ip link set {wire} master lab up")
        self._in_network(f"nsenter --target={system.pid} --net -- ip address add {self.address}/24 dev eth0")
        self._in_network(f"nsenter --target={system.pid} --net -- ip link set eth0 up")

    def wait_running(self) -> None:
        """Wait until systemd has started all that is to run; fails when a unit did."""
        state = wait_until(lambda: self._state(), f"{self.name} runs", pause_s=0.2)
        assert state == "running", f"{self.name} is {state}\n{self.run('systemctl --failed --no-pager', check=False).stdout}"

    def _state(self) -> str:
        """``running`` or ``degraded``; empty while it starts."""
        state = self.run("systemctl is-system-running", check=False).stdout.strip()
        return state if state in ("running", "degraded", "maintenance") else ""

    def reboot(self) -> None:
        """Shut down in order and boot again; its network device is another one then."""
        system = self._running
        self.run("systemctl poweroff", check=False)
        wait_until(lambda: system.ended, f"{self.name} shut down")
        self.pull_the_plug()
        self.boot()
        self.wait_running()

    def pull_the_plug(self) -> None:
        """Every process is gone at once; nothing is written any more."""
        if self._system is not None:
            self._system.end()
            self._system = None
            groups = self._control_group()
            wait_until(lambda: _removed(groups), f"the processes of {self.name} are gone", pause_s=0.02)

    @property
    def _running(self) -> Namespaces:
        assert self._system is not None, f"{self.name} is off"
        return self._system

    def _control_group(self) -> Path:
        return _control_groups() / f"{self._folder.parent.name}-{self._network.pid}-{self.name}"

    def _in_network(self, command: str) -> None:
        done = subprocess.run(self._network.command(command.split()), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    # Work on it

    def run(self, command: str, *, check: bool = True, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a line of shell as root.  Fails with its output unless it succeeds or ``check`` is false."""
        inside = self._running.command(["env", "-i", f"PATH={_PATH}", "HOME=/root", "LANG=C.UTF-8", "bash", "-c", f"cd /root && {command}"])
        done = subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s)
        assert done.returncode == 0 or not check, f"{self.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def path(self, inside: str) -> Path:
        """Where a file of the host is on this machine, while it runs."""
        return self._running.root / inside.lstrip("/")

    def write(self, inside: str, text: str) -> None:
        """Write a file of the host; its folders are made."""
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        self.path(inside).write_text(text, encoding="utf-8")

    def copy(self, source: Path, inside: str) -> None:
        """Copy a file or a folder of this machine to the host, to that very path."""
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, self.path(inside), dirs_exist_ok=True)
        else:
            shutil.copy(source, self.path(inside))

    def journal(self, unit: str) -> str:
        """What a unit has logged."""
        return self.run(f"journalctl --no-pager --output=cat --unit={unit}").stdout


def _control_groups() -> Path:
    """Where this machine has its control groups of version 2, beside those of version 1 or alone.

    Only version 2 reports to the systemd of a namespace that a group is empty.  With version 1 it may miss that: a killed service with a
    child then waits for the whole of its stop timeout before it is started again.
    """
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    found = next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), None)
    assert found is not None, "no control groups of version 2 here: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
    return found


def _removed(groups: Path) -> bool:
    """Remove what a host left of its control groups; false while a process is in one."""
    for folder in sorted((folder for folder in groups.rglob("*") if folder.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    with contextlib.suppress(FileNotFoundError, OSError):
        groups.rmdir()
    return not groups.exists()
