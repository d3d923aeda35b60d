"""Where a client begins: the addresses it is given, of nodes or of name servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dledger_wire.addresses import is_address
from dledger_wire.errors import InvalidArgumentError

Bootstrap: TypeAlias = str | Sequence[str]  # host:port,host:port or a list of them


def parse_bootstrap(bootstrap: Bootstrap) -> list[str]:
    """The addresses of ``host:port,host:port``, or of a list of them.  Raises InvalidArgumentError."""
    if isinstance(bootstrap, list | tuple) and all(isinstance(each, str) for each in bootstrap):
        bootstrap = ",".join(bootstrap)
    if not isinstance(bootstrap, str):
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: expected host:port,host:port,...")
    addresses = list(dict.fromkeys(part.strip() for part in bootstrap.split(",") if part.strip()))
    for address in addresses:
        if not is_address(address):
            raise InvalidArgumentError(f"bootstrap {bootstrap!r}: {address!r} is not host:port; expected host:port,host:port,...")
    if not addresses:
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: no address; expected host:port,host:port,...")
    return addresses
