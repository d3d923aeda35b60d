"""Files with passwords and secrets: who may be able to read them, and what has to be in them."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from dledger_wire.errors import ConfigError
from dledger_wire.security.credentials import ClusterCredentials, PasswordCredentials, read_secret, write_new_pair
from dledger_wire.security.principal import node


def secret_file(tmp_path: Path, text: bytes = b"wonderland\n", mode: int = 0o600) -> str:
    path = tmp_path / "password"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


def test_the_first_line_is_the_secret(tmp_path: Path) -> None:
    assert read_secret(secret_file(tmp_path, b"wonder land\r\nsecond line\n"), "a password") == "wonder land"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused_with_the_mode_that_is_wanted(tmp_path: Path, mode: int) -> None:
    expected = "expected mode 0600, or 0640 for a file of root" if os.geteuid() == 0 else "expected mode 0600"  # as help and pages say
    with pytest.raises(ConfigError, match=rf"can be read by others \(mode {mode:04o}\); {expected}: chmod 600 "):
        read_secret(secret_file(tmp_path, mode=mode), "a password")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root's")
def test_a_file_of_roots_may_be_read_by_its_group(tmp_path: Path) -> None:
    assert read_secret(secret_file(tmp_path, mode=0o640), "a password") == "wonderland"


@pytest.mark.parametrize("text", [b"", b"\n", b"\nsecond", b"x" * 2000, b"\xff\xfe\n"])
def test_what_is_no_secret_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError, match="password: expected a password"):
        read_secret(secret_file(tmp_path, text), "a password")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read a password: no such file"):
        read_secret(str(tmp_path / "none"), "a password")
    with pytest.raises(ConfigError, match="expected a file"):
        read_secret(str(tmp_path), "a password")


@pytest.mark.parametrize("user", ["", "a b", "-", "a/b", "\x1b", "a" * 128])
def test_a_name_that_no_user_can_have_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="expected letters, digits"):
        PasswordCredentials(user, password="x")


def test_a_password_and_a_file_are_one_too_many_and_neither_is_one_too_few(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either a password or a file"):
        PasswordCredentials("alice", password="x", password_file=secret_file(tmp_path))
    with pytest.raises(ConfigError, match="either a password or a file"):
        PasswordCredentials("alice")


def test_a_password_that_was_replaced_in_its_file_is_used_from_then_on(tmp_path: Path) -> None:
    credentials = PasswordCredentials("alice", password_file=secret_file(tmp_path))
    asyncio.run(credentials.exchange())
    Path(secret_file(tmp_path)).chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        asyncio.run(credentials.exchange())


def test_secrets_do_not_show() -> None:
    shown = repr([PasswordCredentials("alice", password="wonderland"), ClusterCredentials(node("c", "g", "n"), "the secret")])
    assert "wonderland" not in shown
    assert "the secret" not in shown


def test_a_pair_of_files_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    first, second = (str(tmp_path / "key"), b"secret", 0o600), (str(tmp_path / "cert"), b"public", 0o644)
    Path(second[0]).write_bytes(b"was there")
    with pytest.raises(FileExistsError):
        write_new_pair(first, second)
    assert [path.name for path in tmp_path.iterdir()] == ["cert"], "the next try finds nothing in its way"
    Path(second[0]).unlink()
    write_new_pair(first, second)
    assert [Path(name).read_bytes() for name, *_ in (first, second)] == [b"secret", b"public"]
    assert stat.S_IMODE(os.stat(first[0]).st_mode) == 0o600
