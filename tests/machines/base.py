"""The file tree that hosts begin with: this machine's own Debian or Ubuntu, made from its packages once and kept for later runs.

Owns the folder of things that are made once (``~/.cache/dledger-tests``).  Hosts lay their own changes over the tree and never write to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

MINIMAL = ("python3", "python3-venv")  # what an image needs
HOST = (*MINIMAL, "systemd", "systemd-sysv", "dbus", "openssh-server", "iproute2", "nftables", "procps", "ca-certificates")
# A host has no terminal, its clock and names are those of this machine, and its devices are there before it starts: containers of build
# machines may not make any.
_MASKED = (
    *("getty@tty1", "console-getty", "systemd-timesyncd", "systemd-resolved", "systemd-networkd", "systemd-logind", "e2scrub_reap"),
    *("systemd-tmpfiles-setup-dev", "systemd-tmpfiles-setup-dev-early"),
)


def cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache, which ``make`` fills if it is not there; complete or absent, whoever else wants it meanwhile."""
    target = cache_folder() / name
    with open(cache_folder() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            parts = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=cache_folder()))
            try:
                make(parts)
                parts.rename(target)
            except BaseException:
                shutil.rmtree(parts, ignore_errors=True)
                raise
    return target


def base_tree(packages: tuple[str, ...] = HOST) -> Path:
    """A file tree with these packages of the distribution that this machine runs."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    digest = hashlib.sha256("\n".join((suite, *packages, *_MASKED, "1")).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        command = ["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={','.join(packages)}", suite, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
        folder.chmod(0o755)
        if "systemd" in packages:
            units = (f"{name}.service" for name in _MASKED)
            subprocess.run(["systemctl", f"--root={folder}", "mask", *units], check=True, capture_output=True)
        for name in ("hostname", "hosts", "resolv.conf"):
            (folder / "etc" / name).unlink(missing_ok=True)

    return made_once(f"{suite}-{digest}", make)
