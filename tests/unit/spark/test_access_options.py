"""Options that say who a job is: what fits together, what the driver's environment gives, files on executors, and no secret in sight."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
from pyspark import SparkFiles

from dledger_client.types import TlsSettings
from dledger_wire.errors import ConfigError, InvalidArgumentError
from pyspark_dledger.options.access import ACCESS_KNOWN, VARIABLES, AccessOptions, here
from pyspark_dledger.options.model import ReadOptions, WriteOptions, parse_read_options, parse_write_options

BASE, SECRET = {"bootstrap": "a:1", "topic": "orders"}, "n0t-to-be-shown"
REDACTED = re.compile("(?i)secret|password|token|access[.]?key")  # the default of spark.redaction.regex


@pytest.fixture(autouse=True)
def nobody_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def both(**options: str) -> tuple[ReadOptions, WriteOptions]:
    return parse_read_options(BASE | options), parse_write_options(BASE | options)


def test_reads_and_writes_take_the_same_options() -> None:
    given = {"user": "billing", "password": SECRET, "tls.ca": "/ca", "tls.cert": "/cert", "TLS.KEY": "/key"}
    for found in both(**given):
        assert found.access == AccessOptions("billing", SECRET, "", "/ca", "/cert", "/key")
    for found in both():
        assert found.access == AccessOptions()
        assert found.access.client() == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"password": SECRET}, "option user: missing"),
        ({"user": "b"}, "option passwordFile: missing; expected a file with the password of user b"),
        ({"user": "b", "password": SECRET, "passwordFile": "f"}, "options password and passwordFile are mutually exclusive"),
        ({"tls.cert": "c"}, "options tls.cert and tls.key are required together"),
        ({"tls.cert": "c", "tls.key": "k"}, "option tls.ca: missing"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(given: dict[str, str], said: str) -> None:
    for parse in (parse_read_options, parse_write_options):
        with pytest.raises(InvalidArgumentError) as failed:
            parse(BASE | given)
        assert said in failed.value.message
        assert SECRET not in failed.value.message
        assert "\n" not in failed.value.message


def test_the_drivers_environment_goes_along_with_the_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLEDGER_USER", "env")
    monkeypatch.setenv("DLEDGER_PASSWORD_FILE", "/pw")
    monkeypatch.setenv("DLEDGER_TLS_CA", "ca.crt")
    sent = pickle.dumps(both())
    monkeypatch.delenv("DLEDGER_USER")
    for found in pickle.loads(sent):  # noqa: S301 - our own
        assert found.access == AccessOptions("env", "", "/pw", str(ca))
    for found in both(user="billing", password=SECRET):
        assert (found.access.user, found.access.password_file, found.access.ca) == ("billing", "", str(ca))


def test_no_secret_shows_and_spark_redacts_its_option() -> None:
    for found in both(user="billing", password=SECRET):
        assert SECRET not in repr(found)
    assert [name for name in ACCESS_KNOWN if REDACTED.search(name)] == ["password", "passwordFile"]


def test_files_that_spark_brought_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    brought = tmp_path / "brought"
    brought.mkdir()
    for name in ("ca.crt", "b.crt", "b.key"):
        (brought / name).write_text(name, encoding="utf-8")
        (brought / name).chmod(0o755)  # what Spark makes of every file
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(brought))
    settings = AccessOptions("", "", "", "/driver/ca.crt", "/driver/b.crt", "/driver/b.key").client()
    assert settings == {"tls": TlsSettings(str(brought / "ca.crt"), str(brought / "b.crt"), str(brought / "b.key"))}
    assert os.stat(brought / "b.key").st_mode & 0o777 == 0o600
    (tmp_path / "ca.crt").touch()
    assert here(str(tmp_path / "ca.crt")) == str(tmp_path / "ca.crt")
    with pytest.raises(ConfigError, match="/driver/none: is not on this host; expected the file there, or given to Spark: --files"):
        here("/driver/none")
