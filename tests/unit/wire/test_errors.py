"""Errors that a peer sent come back as what they were."""

from __future__ import annotations

import pytest

from dledger_wire.errors import DledgerError, StorageDamagedError, error_from_code


@pytest.mark.parametrize("error", [StorageDamagedError("0000: byte 64", file="0000"), DledgerError("?")])
def test_a_class_of_one_process_that_has_no_code_of_its_own_is_not_what_a_peer_sent(error: DledgerError) -> None:
    class OwnStorageDamagedError(StorageDamagedError):
        """As ``dledger.replica.unsynced`` has one."""

    assert OwnStorageDamagedError.code == StorageDamagedError.code
    found = error_from_code(error.code, error.message, error.details)
    assert (type(found), found.message, found.details) == (type(error), error.message, error.details)
