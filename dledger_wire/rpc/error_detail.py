"""Operating errors as they travel: between the typed classes of ``errors`` and the ``ErrorDetail`` message.

Owns the mapping only; where the detail stands (trailing metadata, a field of an answer) is the user's affair.
"""

from __future__ import annotations

from dledger_wire._pb import types_pb2
from dledger_wire.errors import DledgerError, error_from_code
from dledger_wire.printable import printable

# gRPC peers refuse header blocks above 8 KiB by default; a detail stays well below, whatever text an error collected.
MAX_TEXT_CHARS = 1500
MAX_DETAILS = 32


def to_detail(error: DledgerError) -> types_pb2.ErrorDetail:
    """The message a peer rebuilds ``error`` from; long texts are cut."""
    details = {key[:100]: value[:MAX_TEXT_CHARS] for key, value in error.details.items()}
    return types_pb2.ErrorDetail(code=error.code, message=error.message[:MAX_TEXT_CHARS], details=details)


def from_detail(detail: types_pb2.ErrorDetail) -> DledgerError:
    """The error a peer sent, its text on one line that may be shown."""
    details = {key[:100]: value[:MAX_TEXT_CHARS] for key, value in sorted(detail.details.items())[:MAX_DETAILS]}
    return error_from_code(detail.code, printable(detail.message[:MAX_TEXT_CHARS]), details)
