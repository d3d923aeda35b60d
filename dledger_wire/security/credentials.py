"""Credentials of a dialler, besides a certificate.

Owns reading passwords and secrets from files: a file that others can read is refused, and one that was replaced is read again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import threading
from typing import Protocol

from dledger_wire.errors import ConfigError
from dledger_wire.forked import run_in_children
from dledger_wire.security.principal import USER_NAME, Principal, is_user_name
from dledger_wire.security.scram import ClientExchange, hashed_password

MAX_SECRET_BYTES = 1024
MIN_SECRET_BYTES = 16  # of a cluster
ROOTS_MODE = 0o640  # a group may read what root has made for it, as containers get their secrets
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without hard links say: FAT, shared folders


class Credentials(Protocol):
    """Begins an exchange for each connection."""

    async def exchange(self) -> ClientExchange: ...


def read_secret(path: str, what: str) -> str:
    """The first line of a file with a password or secret.  ConfigError when it is missing, empty, or readable by others."""
    check_private(path, what)
    with open(path, "rb") as file:
        data = file.read(MAX_SECRET_BYTES + 1)
    line = data.partition(b"\n")[0].rstrip(b"\r")
    if not line or len(line) > MAX_SECRET_BYTES:
        raise ConfigError(f"{path}: expected {what} of 1 to {MAX_SECRET_BYTES} bytes in the first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected {what} as UTF-8 text") from None


def write_new(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file with a secret, or beside one, or none at all, also when killed.  FileExistsError when one is there."""
    there = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if os.path.lexists(path):
        raise there
    unfinished = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)  # of a process that was killed
    opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _name(unfinished, path)
    except FileExistsError:
        raise there from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _name(unfinished: str, path: str) -> None:
    """Give a finished file its name, unless another has it."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(unfinished, path)


def write_new_pair(first: tuple[str, bytes, int], second: tuple[str, bytes, int]) -> None:
    """Two such files with their modes, both or none, unless the process is killed between them."""
    write_new(*first)
    try:
        write_new(*second)
    except BaseException:
        os.unlink(first[0])
        raise


def check_private(path: str, what: str) -> None:
    """ConfigError unless ``path`` is a file that only its owner can read; one of root's may be read by its group as well."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read {what}: {os.strerror(error.errno or 0).lower()}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: expected a file with {what}")
    allowed = ROOTS_MODE if found.st_uid == 0 else 0o600
    if stat.S_IMODE(found.st_mode) & 0o077 & ~allowed:
        mode = stat.S_IMODE(found.st_mode)
        expected = "expected mode 0600, or 0640 for a file of root" if allowed == ROOTS_MODE else "expected mode 0600"
        raise ConfigError(f"{path}: {what} can be read by others (mode {mode:04o}); {expected}: chmod 600 {path}")


class PasswordCredentials:
    """A user with a password, given or in a file."""

    def __init__(self, user: str, *, password: str = "", password_file: str = "") -> None:
        if not is_user_name(user):
            raise ConfigError(f"user {user!r}: expected {USER_NAME}")
        if bool(password) == bool(password_file):
            raise ConfigError(f"user {user}: expected either a password or a file with it")
        self.user = user
        self._password = password
        self._file = password_file
        if password_file:
            read_secret(password_file, "a password")

    def __repr__(self) -> str:
        return f"PasswordCredentials({self.user!r})"

    async def exchange(self) -> ClientExchange:
        password = read_secret(self._file, "a password") if self._file else self._password
        return ClientExchange(self.user, functools.partial(_hashed_once, self.user, password), is_slow=True)


_hashing = threading.Lock()


def _hashed_once(user: str, password: str, salt: bytes) -> str:
    """Connections that are dialled at the same moment wait for one hash instead of making one each."""
    run_in_children(_after_fork)
    with _hashing:
        return hashed_password(user, password, salt)


def _after_fork() -> None:
    global _hashing
    _hashing = threading.Lock()  # a thread that is not here may have held it


class ClusterCredentials:
    """A node or a name server with the secret of its cluster."""

    def __init__(self, principal: Principal, secret: str) -> None:
        self.principal = principal
        self._secret = secret

    def __repr__(self) -> str:
        return f"ClusterCredentials({self.principal.uri!r})"

    async def exchange(self) -> ClientExchange:
        return ClientExchange(self.principal.uri, lambda _salt: self._secret)
