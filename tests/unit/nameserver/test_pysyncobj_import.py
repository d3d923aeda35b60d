"""What importing PySyncObj does to the process."""

from __future__ import annotations

import socket

from broker.nameserver import pysyncobj_quorum


def test_addresses_can_still_be_written_after_pysyncobj_was_imported() -> None:
    assert pysyncobj_quorum
    assert socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])) == "127.0.0.1"
    assert socket.inet_ntop(socket.AF_INET6, bytes(15) + b"\x01") == "::1"
