"""Contexts: a file for each cluster, with its addresses and the user to log in as.

Owns their files, ``~/.config/dledger/NAME.yaml`` (``$XDG_CONFIG_HOME``), and which variables they set, where
the environment does not.  A context never has a password, only the file with it.
"""

from __future__ import annotations

import os
from pathlib import Path

from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

# Setting -> variable, and whether it is a path, which is relative to the file.  Of each line either the environment or the context counts.
WHERE = {"config": ("DLEDGER_CONFIG", True), "bootstrap": ("DLEDGER_BOOTSTRAP", False)}
WHO = {"user": (USER, False), "password_file": (PASSWORD_FILE, True), "tls_cert": (CERT, True), "tls_key": (KEY, True)}
TRUST = {"tls_ca": (CA, True)}


def variables_of(name: str) -> dict[str, str]:
    """The variables that context ``name`` sets, which the environment leaves open.  ConfigError for a file that is no context."""
    file = file_of(name)
    settings = _settings(file)
    found: dict[str, str] = {}
    for line in (WHERE, WHO, TRUST):
        if any(os.environ.get(variable) for variable, _ in line.values()):
            continue
        for setting, (variable, is_path) in line.items():
            if setting in settings:
                value = settings[setting]
                found[variable] = str(file.parent / Path(value).expanduser()) if is_path else value
    return found


def file_of(name: str) -> Path:
    """The file of a context; a name with a slash is a path."""
    if "/" in name:
        return Path(name).absolute()
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "dledger", f"{name}.yaml")


def _settings(file: Path) -> dict[str, str]:
    import yaml

    from dledger_wire.errors import ConfigError

    known = [*WHERE, *WHO, *TRUST]
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot read the context: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{file}: expected a context in YAML, with {', '.join(known)}") from None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise ConfigError(f"{file}: expected a context with texts for {', '.join(known)}")
    unknown = [str(setting) for setting in data if setting not in known]
    if unknown:
        hint = "; a password goes into a file of its own, see password_file" if "password" in unknown else ""
        raise ConfigError(f"{file}: unknown setting {unknown[0]}; expected {', '.join(known)}{hint}")
    return data
