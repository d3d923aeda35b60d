"""Environment variables with a client's identity: the same for Python clients, the command line and Spark."""

from __future__ import annotations

USER = "DLEDGER_USER"
PASSWORD_FILE = "DLEDGER_PASSWORD_FILE"  # noqa: S105 - a name
CA = "DLEDGER_TLS_CA"
CERT = "DLEDGER_TLS_CERT"
KEY = "DLEDGER_TLS_KEY"
