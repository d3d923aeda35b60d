"""Users of a test's cluster: an administrator with a password, who gives the commands, and users of RocketMQ's clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.config.security import verifier_text
from broker.remoting.signature import signature_of
from dledger_client import Admin
from dledger_client.admin.security import AccessRule
from dledger_wire.security.scram import password_verifier
from tests.cluster.rocketmq import RocketmqCluster
from tests.waiting import LIMIT_MS

ADMIN, PASSWORD = "admin", "correct horse"
RULES = [("shop", "topic", "orders", "write"), ("audit", "topic", "orders", "read"), ("audit", "group", "readers", "read")]


def with_administrator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The block ``security`` of a cluster whose users have to log in.  Commands and clients of this process are the administrator."""
    secret, password = folder / "secret", folder / "password"
    for file, text in ((secret, "s" * 40), (password, PASSWORD)):
        file.write_text(text + "\n", encoding="utf-8")
        file.chmod(0o600)
    monkeypatch.setenv("DLEDGER_USER", ADMIN)
    monkeypatch.setenv("DLEDGER_PASSWORD_FILE", str(password))
    users = {"required": True, "administrators": {ADMIN: verifier_text(password_verifier(ADMIN, PASSWORD))}}
    return {"cluster_secret_file": str(secret), "users": users}


def secrets_of_users(cluster: RocketmqCluster, *more: tuple[str, str, str, str], **connection: Any) -> dict[str, str]:
    """Users shop and audit with their rules and ``more``; their secrets."""
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS, **connection) as admin:
        for name in ("shop", "audit"):
            admin.create_user(name)
        admin.change_rules([AccessRule(user, "allow", kind, name, action) for user, kind, name, action in (*RULES, *more)])  # type: ignore[arg-type]
    return {name: json.loads(cluster.cli_ok("user", "secret", name, "--yes", "--json"))["secret"] for name in ("shop", "audit")}


def signed(name: str, secret: str, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
    """The fields of a request of that user."""
    named = fields | {"AccessKey": name}
    return named | {"Signature": signature_of(secret, named, body)}
