"""Addresses of host names, looked up again for every connection: a name that moves to another address is followed.

Owns the threads in which the system's resolver blocks, at most one for each name, so that neither an event loop nor the threads of disks
ever wait for a name server.  Nothing is cached.  Only while the resolver itself fails or is silent, what it said last of a name counts on;
that a name does not exist is an answer (docs/adr/0023).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from dledger_wire.forked import run_in_children

LOOKUP_S = 1.0  # the longest that a connection waits for the resolver when it has said something of that name before
AT_ONCE_S = 0.05

Addresses = tuple[str, ...]

# What says of the resolver that it failed, and not of the name that it does not exist.
_RESOLVER_FAILED = (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM, socket.EAI_MEMORY)


def is_numeric(host: str) -> bool:
    """Whether ``host`` is an address, so that there is nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def system_addresses(host: str) -> Addresses:
    """What the system's resolver says, in its order; blocks.  OSError when there is no such host, or no answer."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_with_scope(str(place[0]), place[3] if len(place) == 4 else 0) for *_, place in found))


def _with_scope(ip: str, scope: object) -> str:
    return f"{ip}%{scope}" if scope and "%" not in ip else ip


class _Lookup:
    """One that is under way, for all callers that ask meanwhile."""

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        self.answer: Future[Addresses] = Future()
        self.answer.set_running_or_notify_cancel()  # from here on no waiting caller can cancel it

    def left_s(self, patience_s: float) -> float:
        """How much longer to wait for it; late callers wait less."""
        return max(0.0, self.since_s + patience_s - time.monotonic())


class Resolver:
    """Of one process; may be used from any thread and any loop."""

    def __init__(self, look_up: Callable[[str], Addresses] = system_addresses) -> None:
        self._look_up = look_up
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: in a forked child the threads of its parent do not run."""
        self._lock = threading.Lock()
        self._running: dict[str, _Lookup] = {}
        self._said: dict[str, Addresses] = {}

    async def addresses(self, host: str) -> Addresses:
        """Where ``host`` is now.  OSError when there is no such host; waits as long as it is cancelled when nothing is known of it."""
        if is_numeric(host):
            return (host,)
        lookup, said = self._begin(host)
        answer = asyncio.wrap_future(lookup.answer)
        answer.add_done_callback(_retrieve)
        try:
            await asyncio.wait([answer], timeout=lookup.left_s(LOOKUP_S) if said else None)
        finally:
            answer.cancel()  # only this view of it: the lookup goes on for the others
        if answer.cancelled():
            return said
        return _counting(answer.exception(), said) or answer.result()

    def address_at_once(self, host: str) -> str | None:
        """One of ``addresses_at_once``; another one at each second, so that of several each has its turn."""
        found = self.addresses_at_once(host)
        return found[int(time.monotonic()) % len(found)] if found else None

    def addresses_at_once(self, host: str) -> Addresses:
        """Where ``host`` is, for callers that must go on; empty when it is not known yet, or there is no such host."""
        if is_numeric(host):
            return (host,)
        lookup, said = self._begin(host)
        try:
            return lookup.answer.result(lookup.left_s(AT_ONCE_S))
        except TimeoutError:
            return said
        except OSError as error:
            return _counting(error, said)

    def _begin(self, host: str) -> tuple[_Lookup, Addresses]:
        """The lookup that is under way or begins now, and what was said last."""
        with self._lock:
            lookup, said = self._running.get(host), self._said.get(host, ())
            if lookup is not None:
                return lookup, said
            lookup = self._running[host] = _Lookup()
        run_in_children(_after_fork)
        threading.Thread(target=self._run, args=(host, lookup), name=f"resolve {host}", daemon=True).start()
        return lookup, said

    def _run(self, host: str, lookup: _Lookup) -> None:
        found: Addresses = ()
        failed: OSError | None = None
        try:
            found = self._look_up(host)
        except OSError as error:
            failed = error
        except UnicodeError as error:  # a name that IDNA does not take
            failed = socket.gaierror(socket.EAI_NONAME, str(error))
        with self._lock:
            if self._running.get(host) is lookup:
                del self._running[host]
            if found:
                self._said[host] = found
            elif not _is_of_the_resolver(failed):
                self._said.pop(host, None)
        if failed is not None:
            lookup.answer.set_exception(failed)
        else:
            lookup.answer.set_result(found)


def _retrieve(answer: asyncio.Future[Addresses]) -> None:
    if not answer.cancelled():
        answer.exception()


def _is_of_the_resolver(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _RESOLVER_FAILED


def _counting(error: BaseException | None, said: Addresses) -> Addresses:
    """What was said last, where the resolver itself failed."""
    return said if _is_of_the_resolver(error) else ()


RESOLVER = Resolver()


def _after_fork() -> None:
    RESOLVER.start_over()
