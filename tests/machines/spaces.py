"""Network namespaces with wires, routers and firewalls between them, for processes of this machine: lighter than hosts (``lab.py``).

All of them are inside one network and one mount namespace that has no way out: two runs side by side never meet, and nothing is left when
the process that made them has ended.  They share a hosts file of their own, in which names can be moved.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.machines.namespaces import Namespaces

OUTSIDE = "outside"  # the bridge that everything public is on
PREFIX = "203.0.113"  # RFC 5737: for documentation, routed nowhere


class Spaces:
    """``with Spaces(folder) as spaces: spaces.add("a", 11); spaces.start("a", [...], log=...)``."""

    def __init__(self, folder: Path) -> None:
        assert os.geteuid() == 0, "network namespaces need root"
        self._folder = folder
        self._hosts: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._space: Namespaces | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_hosts()
        order = self._folder / "nsswitch.conf"
        order.write_text("hosts: files\n", encoding="utf-8")  # a name that is not in the file does not exist
        setup = f"mount -t tmpfs tmpfs /run && mkdir /run/netns && mount --bind '{self._hosts_file}' /etc/hosts"
        setup += f" && if [ -e /etc/nsswitch.conf ]; then mount --bind '{order}' /etc/nsswitch.conf; fi"
        self._space = Namespaces.start("net", "mount", setup=setup)
        try:
            self.ip("link set lo up", f"link add {OUTSIDE} type bridge forward_delay 0", f"link set {OUTSIDE} up")
        except BaseException:
            self._space.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        if self._space is not None:
            self._space.end()

    # -- places

    def ip(self, *lines: str, at: str | None = None) -> None:
        """Commands of iproute2, in the space between all others or in one of them."""
        for line in lines:
            self.run(at, ["ip", *line.split()])

    def add(self, name: str, number: int) -> str:
        """A space with a public address, which is returned."""
        address = f"{PREFIX}.{number}"
        self.ip(f"netns add {name}", f"link add v{number} type veth peer name eth0 netns {name}", f"link set v{number} master {OUTSIDE} up")
        self.ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", at=name)
        return address

    def add_behind(self, name: str, router: str, address: str, gateway: str) -> None:
        """A space with nothing but a private ``address``; its way out is ``router``, to whom it is connected by a wire of their own."""
        self.ip(f"netns add {name}", f"-n {router} link add eth1 type veth peer name eth0 netns {name}")
        self.ip(f"addr add {gateway}/24 dev eth1", "link set eth1 up", at=router)
        self.ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", f"route add default via {gateway}", at=name)
        self.run(router, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])

    def filter(self, name: str, rules: str) -> None:
        """Rules of nftables for this space, in place of those it had."""
        self.run(name, ["nft", "-f", "-"], stdin=f"flush ruleset\n{rules}")

    # -- names

    def lead(self, name: str, address: str | None) -> None:
        """Have ``name`` lead to ``address``, in every space; None: there is no such name."""
        if address is None:
            self._hosts.pop(name, None)
        else:
            self._hosts[name] = address
        self._write_hosts()

    def _write_hosts(self) -> None:
        # In place: another file would not be the one that is mounted.
        text = "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **self._hosts}.items())
        with open(self._hosts_file, "r+" if self._hosts_file.exists() else "w", encoding="utf-8") as file:
            file.write(text)
            file.truncate()

    @property
    def _hosts_file(self) -> Path:
        return self._folder / "hosts"

    # -- programs

    def command(self, at: str | None, argv: Sequence[str]) -> list[str]:
        assert self._space is not None, "the spaces are not entered"
        return self._space.command(argv if at is None else ["ip", "netns", "exec", at, *argv])

    def run(
        self, at: str | None, argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> str:
        """Run a program that must succeed; its output."""
        done = subprocess.run(
            self.command(at, argv),
            input=stdin,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{at}: {' '.join(argv)[:300]}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, at: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program, which ends with this object or with its ``stdin``; its output goes to ``log``."""
        with open(log, "ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.command(at, argv)],
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return process
