"""Values of settings in a cluster file: addresses, names, sizes, durations, each with its check.

A check raises ValueError with what was expected and what was given.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from broker.config.model import got
from broker.config.units import parse_duration_ms, parse_size
from dledger_wire.names import is_node_name

T = TypeVar("T")

_HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``.  ValueError says what was expected."""
    host, separator, port_text = address.rpartition(":")
    if not separator or not host or not port_text.isascii() or not port_text.isdigit():
        raise ValueError(f"expected host:port, got {address!r}")
    if not 1 <= int(port_text) <= 65535:
        raise ValueError(f"expected a port from 1 to 65535, got {port_text}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(bare, bracketed=bare != host):
        raise ValueError(f"expected host:port with a host name, an IPv4 address or an [IPv6] address, got {address!r}")
    return bare, int(port_text)


def _is_host(host: str, *, bracketed: bool) -> bool:
    try:
        return bracketed == (ipaddress.ip_address(host).version == 6)
    except ValueError:
        last_label = host.rsplit(".", 1)[-1]
        return not bracketed and not last_label.isdigit() and all(_HOST_LABEL.fullmatch(label) for label in host.split("."))


def is_host(host: str) -> bool:
    """Whether it is a host name or an IP address."""
    return _is_host(host, bracketed=":" in host)


def is_any_host(host: str) -> bool:
    """0.0.0.0 or ::, every address of a machine: to listen on, not to be reached at."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _listen_address(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected host:port, got {value!r}")
    split_address(value)
    return value


def reachable_address(value: object) -> str:
    address = _listen_address(value)
    if is_any_host(split_address(address)[0]):
        raise ValueError(f"expected an address that others can reach, got {address}; where a node listens is its setting listen")
    return address


def node_name(value: object) -> str:
    if not isinstance(value, str) or not is_node_name(value):
        raise ValueError(f"expected a name of letters, digits, _ and -, at most 64 long, got {value!r}")
    return value


def hours_of_day(value: object) -> str:
    """``deleteWhen``: hours of the day, ``04`` or ``04;16``.  YAML reads an unquoted 04 as the number 4."""
    parts = str(value).split(";") if isinstance(value, (str, int)) and not isinstance(value, bool) else []
    if not parts or not all(part.strip().isdigit() and int(part) <= 23 for part in parts):
        raise ValueError(f'expected hours of the day such as "04" or "04;16", got {value!r}')
    return ";".join(f"{int(part):02d}" for part in parts)


def delay_levels(value: object) -> str:
    if not isinstance(value, str) or not value.split():
        raise ValueError(f'expected durations such as "1s 5s 10s", got {value!r}')
    for part in value.split():
        parse_duration_ms(part)
    return " ".join(value.split())


def size(low: int, high: int) -> Callable[[object], int]:
    return _within(parse_size, low, high, lambda _: f"{low} to {high} bytes")


def duration(low_ms: int, high_ms: int, bare_unit: str = "ms") -> Callable[[object], int]:
    return _within(lambda value: parse_duration_ms(value, bare_unit), low_ms, high_ms, lambda _: f"{low_ms} ms to {high_ms} ms")


def number(low: int, high: int) -> Callable[[object], int]:
    def expected(found: int) -> str:
        return f"{low} or more" if found < low else f"{high} or less"

    return _within(lambda value: _typed(value, int, "a whole number"), low, high, expected)


def text(low: int, high: int) -> Callable[[object], str]:
    return _within(lambda value: _typed(value, str, "text"), low, high, lambda _: f"{low} to {high} characters", len)


def _within(
    parse: Callable[[object], T], low: int, high: int, expected: Callable[[Any], str], measure: Callable[[Any], int] = int
) -> Callable[[object], T]:
    def check(value: object) -> T:
        found = parse(value)
        if not low <= measure(found) <= high:
            raise ValueError(f"expected {expected(found)}, got {value!r}")
        return found

    return check


def memory_mark(value: object) -> str:
    """``memoryHighWatermark``: a share of the memory, ``40%`` or 0.4, or a size."""
    expected = f"a share of the memory such as 40% or 0.4, or a size of at least {LEAST_MARK >> 20}MiB"
    share = isinstance(value, str) and value.rstrip().endswith("%")
    if share or (isinstance(value, float) and value < 1):
        try:
            percent = float(str(value).rstrip(" %")) * (1 if share else 100)
        except ValueError:
            percent = 0.0
        if not 1 <= percent <= 95:
            raise ValueError(f"expected {expected}, got {value!r}")
        return f"{percent:g}%"
    try:
        found = parse_size(value)
    except ValueError:
        found = 0
    if found < LEAST_MARK:
        raise ValueError(f"expected {expected}, got {value!r}")
    return str(value)


def disk_limit(value: object) -> str:
    """``diskFreeLimit``: a size, a share of the disk as ``5%``, or ``mem_relative 1.0``, so many times the machine's memory."""
    expected = f"a size of at least {LEAST_FREE // 10**6}MB, a share of the disk such as 5%, or of the memory such as mem_relative 1.0"
    text = str(value).strip()
    try:
        if text.endswith("%"):
            found = 0.1 <= float(text[:-1]) <= 90
        elif text.startswith(MEM_RELATIVE):
            found = 0.01 <= float(text.removeprefix(MEM_RELATIVE)) <= 100
        else:
            found = text == "" or parse_size(value) >= LEAST_FREE
    except ValueError:
        found = False
    if not found:
        raise ValueError(f"expected {expected}, got {value!r}")
    return text


def memory_ratio(value: object) -> float:
    found = float(_typed(value, int | float, "a number"))
    if not 0 < found <= 95:
        raise ValueError(f"expected more than 0 and at most 95, got {value!r}")
    return found


def length(low: int, high: float = float("inf")) -> Callable[[list[Any]], list[Any]]:
    def check(value: list[Any]) -> list[Any]:
        if not low <= len(value) <= high:
            raise ValueError(f"expected {f'at least {low}' if len(value) < low else f'at most {high}'}, got {len(value)}")
        return value

    return check


def _typed(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"expected {name}, got {got(value)}")
    return value


Address = Annotated[str, reachable_address]
ListenAddress = Annotated[str, _listen_address]
Name = Annotated[str, node_name]
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LEAST_MARK = 128 << 20  # of memoryHighWatermark
LEAST_FREE = 50 * 10**6  # of diskFreeLimit
MEM_RELATIVE = "mem_relative "
MAX_NODES = 9  # of one replica group
