"""A stock gRPC client does not learn by waiting which users there are: the same work is done for a name that there is not."""

from __future__ import annotations

import asyncio

import pytest

from broker.security.admission import ClusterAdmission
from dledger_wire.security import scram
from dledger_wire.security.scram import Verifier, password_verifier
from store.state.security import SecurityState


@pytest.mark.parametrize("name", ["admin", "nobody-of-that-name"])
def test_a_wrong_password_is_checked_whether_there_is_the_user_or_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    administrators = {"admin": password_verifier("admin", "the right one")}
    state = SecurityState()
    admission = ClusterAdmission("shop", administrators=administrators, secret=None, users_required=True, users=lambda: state)
    compared: list[str] = []
    fits = scram.fits

    def counted(verifier: Verifier, secret: str) -> bool:
        compared.append(secret)
        return fits(verifier, secret)

    monkeypatch.setattr(scram, "fits", counted)
    assert not asyncio.run(admission.password_fits("10.0.0.1:1", name, "a wrong one"))
    salt = admission.verifier_of(name).salt
    assert compared == [scram.hashed_password(name, "a wrong one", salt)]
