"""Options with a job's credentials for a secured cluster, and its trusted authorities.

Owns their names, what belongs together, and where their files are on an executor.  What no option says is taken from the environment of the
driver (DLEDGER_USER, DLEDGER_PASSWORD_FILE, DLEDGER_TLS_CA, DLEDGER_TLS_CERT, DLEDGER_TLS_KEY), whose values go to the tasks.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from dledger_client.runtime.security import SecuritySettings
from dledger_client.types import TlsSettings
from dledger_wire.errors import ConfigError, InvalidArgumentError
from dledger_wire.security import variables
from pyspark_dledger.options.parser import OptionParser

# Option -> variable of the environment.
VARIABLES = {
    "user": variables.USER,
    "passwordFile": variables.PASSWORD_FILE,
    "tls.ca": variables.CA,
    "tls.cert": variables.CERT,
    "tls.key": variables.KEY,
}
ACCESS_KNOWN = ("user", "password", "passwordFile", "tls.ca", "tls.cert", "tls.key")
PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """A job's credentials as options: paths are those of the driver."""

    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def client(self) -> SecuritySettings:
        """For a client in this process, on the driver or on an executor."""
        settings = SecuritySettings()
        if self.user:
            settings["user"] = self.user
        if self.password:
            settings["password"] = self.password
        if self.password_file:
            settings["password_file"] = here(self.password_file, private=True)
        if self.ca:
            cert, key = here(self.cert), here(self.key, private=True)
            settings["tls"] = TlsSettings(here(self.ca), cert, key)
        return settings


def parse_access(given: OptionParser) -> AccessOptions:
    """Of the options of a read or a write.  InvalidArgumentError for some that do not fit together."""
    values = {name: given.optional(name) or "" for name in ACCESS_KNOWN}
    for names in (("user", "password", "passwordFile"), ("tls.ca", "tls.cert", "tls.key")):
        if not any(values[name] for name in names):
            values |= {name: os.environ.get(VARIABLES[name], "") for name in names if name in VARIABLES}
    for name in ("passwordFile", "tls.ca", "tls.cert", "tls.key"):
        if os.path.exists(values[name]):  # tasks run in other folders
            values[name] = os.path.abspath(values[name])
    found = AccessOptions(*(values[name] for name in ACCESS_KNOWN))
    _check(found)
    return found


def _check(found: AccessOptions) -> None:
    if found.password and found.password_file:
        raise InvalidArgumentError("options password and passwordFile are mutually exclusive")
    if (found.password or found.password_file) and not found.user:
        raise InvalidArgumentError("option user: missing; expected the user whose password is given")
    if bool(found.cert) != bool(found.key):
        raise InvalidArgumentError("options tls.cert and tls.key are required together")
    if found.cert and not found.ca:
        raise InvalidArgumentError("option tls.ca: missing; expected the authorities of the nodes, beside tls.cert")
    if found.user and not (found.password or found.password_file or found.cert):
        raise InvalidArgumentError(f"option passwordFile: missing; expected a file with the password of user {found.user}, or tls.cert")


def here(path: str, *, private: bool = False) -> str:
    """A file of the driver as this process finds it: at its path, or among those that Spark brought (``--files``, ``addFile``), of which
    ``private`` ones are given the mode back that Spark's copy has lost.  ConfigError when it is nowhere."""
    if not path or os.path.exists(path):
        return path
    from pyspark import SparkFiles

    brought = ""
    with contextlib.suppress(Exception):  # a process of Spark without a folder for files
        brought = SparkFiles.get(os.path.basename(path))
    if not brought or not os.path.exists(brought):
        raise ConfigError(f"{path}: is not on this host; expected the file there, or given to Spark: --files {path}")
    if private and os.stat(brought).st_mode & 0o077:
        os.chmod(brought, PRIVATE)
    return brought
