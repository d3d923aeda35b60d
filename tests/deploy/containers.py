"""The image of cluster-configs/containers, built here, and containers of it without an engine: namespaces over a file tree of the image.

Owns what an engine does for a container: a network device with an address, names of the others, volumes, a read-only root, the image's user
without capabilities, its environment, signals to its first process, its exit status.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machines.base import MINIMAL, base_tree, made_once
from tests.machines.namespaces import Namespaces
from tests.machines.wheels import needed_wheels
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = "cluster-configs/containers/Containerfile"
EXTRAS = ("console", "otel", "fast")
IMAGE_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
SUBNET = "10.89.0"

_START = """
mount --make-rprivate /
mount -t proc proc "{root}/proc"
mount -t tmpfs -o mode=755 tmpfs "{root}/dev"
for device in null zero full random urandom; do touch "{root}/dev/$device"; mount --bind /dev/$device "{root}/dev/$device"; done
mkdir "{root}/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "{root}/dev/shm"
mount --bind "{root}" "{own}/readonly" && mount -o remount,bind,ro "{own}/readonly"
for part in proc dev dev/shm; do mount --rbind "{root}/$part" "{own}/readonly/$part"; done
{mounts}
hostname "{name}"
exec {command}
"""


def run(command: Sequence[str], **more: Any) -> str:
    """Its output.  Fails with what it said unless it succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@dataclass(frozen=True)
class Image:
    """An image in the storage of buildah."""

    name: str

    @property
    def config(self) -> dict[str, Any]:
        """As docker inspect shows it."""
        document = json.loads(run(["buildah", "inspect", "--type", "image", self.name]))
        config: dict[str, Any] = document["Docker"]["config"]
        return config

    def remove(self) -> None:
        run(["buildah", "rmi", self.name])


def build_image(context: Path, version: str) -> Image:
    """Build the Containerfile as it stands, on a base made of the distribution's packages, with wheels in place of the network."""
    base, name = _base_image(), f"localhost/dledger-test:{os.getpid()}"
    tracked = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT).split("\0")
    for file in filter(None, tracked):
        if (ROOT / file).is_file():
            (context / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, context / file)
    (context / "wheelhouse").mkdir()
    for folder in (needed_wheels(EXTRAS), _build_wheels()):
        for wheel in folder.glob("*.whl"):
            shutil.copy(wheel, context / "wheelhouse")
    arguments = {"BASE": base, "EXTRAS": ",".join(EXTRAS)}
    options = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
    run(
        ["buildah", "bud", "--isolation=chroot", "--network=host", "--format=docker", *options, "-f", CONTAINERFILE, "-t", name, "."],
        cwd=context,
    )
    return Image(name)


def _base_image() -> str:
    """The name of an image with Python and nothing else; it stays, as the tree that it is made of."""
    tree = base_tree(MINIMAL)
    name = f"localhost/dledger-tests-base:{tree.name}"
    if subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True, check=False).returncode:
        container = run(["buildah", "from", "scratch"]).strip()
        run(["buildah", "add", "-q", container, str(tree), "/"])
        run(["buildah", "commit", "-q", "--rm", container, name])
    return name


def _build_wheels() -> Path:
    """What the build stage needs beside the project's own dependencies."""

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        run(
            [
                *pip,
                "download",
                "--only-binary",
                ":all:",
                "-d",
                str(folder),
                "-c",
                str(ROOT / "requirements.lock"),
                "setuptools",
            ]
        )

    return made_once("wheels-for-builds", make)


class Network:
    """A bridge with its names, in a network namespace without a way out.  Programs run in it as on the machine of the containers."""

    def __init__(self, folder: Path) -> None:
        self.hosts = folder / "hosts"
        self.outside = folder / "hosts-outside"
        self.hosts.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self.outside.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self.names: dict[str, str] = {}
        self._namespaces = Namespaces.start("net", "mount", setup=f"mount --bind '{self.outside}' /etc/hosts")
        for command in (
            "ip link set lo up",
            "ip link add bridge0 type bridge forward_delay 0",
            f"ip address add {SUBNET}.1/24 dev bridge0",
            "ip link set bridge0 up",
            "nft add table ip nat",
            "nft add chain ip nat output { type nat hook output priority -100 ; }",
            "nft add chain ip nat postrouting { type nat hook postrouting priority 100 ; }",
            "nft add rule ip nat postrouting ip saddr 127.0.0.0/8 oifname bridge0 masquerade",
            "sysctl -qw net.ipv4.conf.all.route_localnet=1",
        ):
            self.run(command.split())

    def run(self, command: Sequence[str], **more: Any) -> str:
        return run(self._namespaces.command(command), **more)

    def name(self, *names: str) -> None:
        """Give addresses to containers, which know each other by these names from then on."""
        for name in names:
            self.names[name] = f"{SUBNET}.{10 + len(self.names)}"
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in self.names.items()), encoding="utf-8")

    def attach(self, name: str, pid: int) -> None:
        wire = f"to-{name}"
        inside = ["nsenter", f"--target={pid}", "--net", "--"]
        # The kernel may be about to take the one of a container away that has just ended.
        self.run(["sh", "-c", f"ip link delete {wire} 2>/dev/null || true"])
        self.run(["ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
        self.run(["ip", "link", "set", wire, "master", "bridge0", "up"])
        run([*inside, "ip", "address", "add", f"{self.names[name]}/24", "dev", "eth0"])
        run([*inside, "ip", "link", "set", "eth0", "up"])

    def publish(self, name: str, host_port: int, container_port: int) -> None:
        """Connections to a port of the loopback address go to the container, as an engine does it."""
        target = f"{self.names[name]}:{container_port}"
        self.run(
            ["nft", "add", "rule", "ip", "nat", "output", "ip", "daddr", "127.0.0.1", "tcp", "dport", str(host_port), "dnat", "to", target]
        )

    def close(self) -> None:
        self._namespaces.end()


class Container:
    """One container of an image.  ``start`` it, ``stop`` it by SIGTERM, ``execute`` commands in it; it may be started again."""

    def __init__(self, image: Image, name: str, network: Network, folder: Path, mounts: Mapping[str, Path]) -> None:
        """
        Args:
            name: One that ``network`` knows.
            folder: For its file tree's mount point and its log.
            mounts: Path in the container -> file or folder of this machine.  An empty folder becomes the image's user's, as a new volume.
        """
        self.name = name
        self._network, self._own = network, folder
        self._config = image.config
        self._working = run(["buildah", "from", image.name]).strip()
        self.root = Path(run(["buildah", "mount", self._working]).strip())
        self._mounts = {**mounts, "/etc/hosts": network.hosts}
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "readonly").mkdir(parents=True)
        user, group = (int(each) for each in self._config["User"].split(":"))
        for path, source in self._mounts.items():
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                target.mkdir(exist_ok=True)
                if not any(source.iterdir()):
                    os.chown(source, user, group)
            else:
                target.touch()

    @property
    def log(self) -> str:
        return (self._own / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def pid(self) -> int:
        """Of its first process, as this machine counts."""
        process = self._process
        assert process is not None, f"{self.name} was not started"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children, f"{self.name} ended: status {process.poll()}\n{self.log[-3000:]}"
        return int(children[0])

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, arguments: Sequence[str], entrypoint: Sequence[str] | None = None) -> None:
        """Run the image's entry point with these arguments as the first process."""
        command = [*(self._config["Entrypoint"] if entrypoint is None else entrypoint), *arguments]
        mounts = "\n".join(f"mount --bind '{source}' '{self._own}/readonly{path}'" for path, source in self._mounts.items())
        mounts += f"\nmount -t tmpfs -o mode=1777 tmpfs '{self._own}/readonly/tmp'"
        # It waits for its network device: an engine starts no process before that.
        quoted = " ".join(f"'{part}'" for part in self._as_user(command))
        script = "read -r attached\n" + _START.format(root=self.root, own=self._own, mounts=mounts, name=self.name, command=quoted)
        kinds = ["--pid", "--mount", "--net", "--uts", "--ipc"]
        with open(self._own / "log", "ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "--", "unshare", *kinds, "--fork", "--kill-child", "--", "sh", "-ec", script],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: Path(f"/proc/{self._first_child()}/ns/net").exists(), f"{self.name} began", pause_s=0.02)
        self._network.attach(self.name, self.pid)
        assert self._process.stdin is not None
        run(["nsenter", f"--target={self.pid}", "--net", "--", "ip", "link", "set", "lo", "up"])
        self._process.stdin.write(b"attached\n")
        self._process.stdin.close()
        wait_until(self._is_inside, f"{self.name} has its file tree", pause_s=0.02)

    def _is_inside(self) -> bool:
        """Whether the first process is the image's, which has another root than this machine; or it has ended already."""
        try:
            return not self.running or os.readlink(f"/proc/{self._first_child()}/root") != "/"
        except OSError:
            return not self.running

    def _first_child(self) -> str:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return children[0] if children else "none"

    def _as_user(self, command: Sequence[str]) -> list[str]:
        user, group = self._config["User"].split(":")
        limits = ["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        limits.append("--pdeathsig=KILL")  # the kernel forgets what --kill-child set when a process changes its user
        place = ["env", "-i", f"--chdir={self._config['WorkingDir']}", *self._config["Env"], f"HOME={self._config['WorkingDir']}"]
        return ["chroot", f"{self._own}/readonly", "setpriv", f"--reuid={user}", f"--regid={group}", *limits, "--", *place, *command]

    def execute(
        self, command: Sequence[str], *, check: bool = True, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command beside the first process, as ``docker exec`` does."""
        inside = self._as_user(["env", *(f"{key}={value}" for key, value in (variables or {}).items()), *command])
        entered = ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--net", "--uts", "--ipc", "--", *inside]
        done = subprocess.run(entered, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == 0 or not check, (
            f"{self.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}\n{self.log[-2000:]}"
        )
        return done

    def healthy(self, test: Sequence[str] | None = None) -> bool:
        """Whether a health check passes: the image's, or another one in its form."""
        kind, *command = test or self._config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.running and self.execute(command, check=False).returncode == 0

    def stop(self, within_s: float = LIMIT_S) -> int:
        """Send the image's signal; the exit status of the first process."""
        os.kill(self.pid, getattr(signal, self._config["StopSignal"]))
        return self.wait(within_s)

    def wait(self, within_s: float = LIMIT_S) -> int:
        assert self._process is not None
        return self._process.wait(within_s)

    def remove(self) -> None:
        if self._process is not None:
            first = self._first_child() if self.running else "none"
            self._process.kill()
            self._process.wait()
            wait_until(lambda: not _runs(first), f"the processes of {self.name} are gone", pause_s=0.02)
        run(["buildah", "umount", self._working])
        run(["buildah", "rm", self._working])


def _runs(pid: str) -> bool:
    """Whether there is a process that has not ended; one that nobody has waited for has no program any more."""
    try:
        return bool(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
