"""The quorum of name servers by PySyncObj: what one of them spreads, all get through its replicated log.

Owns the thread that PySyncObj runs in.  It keeps no journal on disk: everything in the name service comes back from what nodes repeat, so
a file could only bring back what is no longer true.  What PySyncObj commits may be lost, late or wrong after a restart; the table merges it
all the same.

PySyncObj unpickles what its peers send: plain data only (``plain_pickle.py``), which cannot run code but can change routes.  So outside
loopback, and wherever the cluster file has a block ``security``, there has to be a password: messages are then encrypted, and those that
were not encrypted with it are never unpickled.  PySyncObj sets no bound to what it collects of a message before that;
``bounded_transport.py`` does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, SyncObjException, replicated

from broker.config.name_servers import NameServerConfig, NameServerSettings
from broker.config.values import split_address
from broker.nameserver.bounded_transport import BoundedTransport, FollowedNode
from broker.nameserver.quorum import NoQuorum, Quorum, QuorumState
from dledger_wire.errors import AddressInUseError
from dledger_wire.tcp.resolver import system_addresses

TICK_S = 0.02
CONNECT_AGAIN_S = 1.0
MAX_WAITING = 5_000  # messages that were not sent yet; more are lost
STOP_TIMEOUT_S = 5.0
KEEPALIVE = (5, 2, 3)  # s without traffic, s between probes, probes
_ROLES = {0: "follower", 1: "candidate", 2: "leader"}

_logger = logging.getLogger(__name__)


def quorum_of(settings: NameServerSettings) -> Quorum:
    """What connects this name server with the others.  ConfigError when they need a password and there is none."""
    if not settings.others:
        return NoQuorum()
    settings.check_password()
    return PySyncObjQuorum(settings.server, settings.others, settings.password())


class _Log(SyncObj):  # type: ignore[misc]
    """The replicated log.  ``taken`` is called with every committed message, in PySyncObj's thread."""

    def __init__(self, own: str, others: Sequence[str], conf: SyncObjConf, taken: Callable[[bytes], None]) -> None:
        # Set before SyncObj counts what belongs to the replicated object: that part goes into its snapshots.
        self._taken = taken
        self.applied = 0
        super().__init__(own, list(others), conf, nodeClass=FollowedNode, transportClass=BoundedTransport)

    @replicated  # type: ignore[untyped-decorator]
    def spread(self, data: bytes) -> None:
        self.applied += 1
        self._taken(data)


class PySyncObjQuorum:
    """Implements ``Quorum``."""

    def __init__(self, own: NameServerConfig, others: Sequence[NameServerConfig], password: str | None) -> None:
        self._own = own
        self._ids = {_bare(other.quorum): other.id for other in others}
        self._password = password
        self._log: _Log | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    async def start(self, deliver: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()

        def taken(data: bytes) -> None:
            try:
                loop.call_soon_threadsafe(deliver, data)
            except RuntimeError:  # the loop is closed: it is not needed any more
                self._ending.set()

        self._log = await loop.run_in_executor(None, self._open, taken)
        self._thread = threading.Thread(target=self._run, args=(self._log,), name="quorum", daemon=True)
        self._thread.start()

    def _open(self, taken: Callable[[bytes], None]) -> _Log:
        own = _bare(self._own.quorum)
        conf = SyncObjConf(
            password=self._password,
            autoTick=False,
            bindAddress=self._bind_address(),
            maxBindRetries=1,
            connectionRetryTime=CONNECT_AGAIN_S,
            commandsQueueSize=MAX_WAITING,
            commandsWaitLeader=False,
            logCompactionMinEntries=500,
            logCompactionMinTime=60,
            leaderFallbackTimeout=5.0,
            useFork=False,
            tcp_keepalive=KEEPALIVE,
        )
        try:
            return _Log(own, list(self._ids), conf, taken)
        except SyncObjException:
            listened = self._own.quorum_listened
            text = f"{listened}: cannot listen for the other name servers: it is in use, or no address of this machine"
            raise AddressInUseError(text, address=listened) from None

    def _bind_address(self) -> str:
        """Where to listen, as a number: PySyncObj would keep what a name meant for ten minutes.  AddressInUseError: the name is unknown."""
        listened = self._own.quorum_listened
        host, port = split_address(listened)
        try:
            return f"{system_addresses(host.strip('[]'))[0]}:{port}"
        except OSError as error:
            text = f"{listened}: cannot listen for the other name servers: {error.strerror}"
            raise AddressInUseError(text, address=listened) from None

    def _run(self, log: _Log) -> None:
        """Let PySyncObj work; whatever breaks in it, the name server goes on."""
        while not self._ending.is_set():
            try:
                log.doTick(TICK_S)
            except Exception:
                _logger.exception("the quorum of name servers: a step failed", extra={"event": "quorum_step_failed"})
                self._ending.wait(1.0)
        log.destroy()

    async def stop(self) -> None:
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.join, STOP_TIMEOUT_S)

    def spread(self, data: bytes) -> None:
        if self._log is not None:
            self._log.spread(data, callback=_ignore)

    def state(self) -> QuorumState:
        log = self._log
        if log is None:
            return QuorumState()
        try:
            status = log.getStatus()
        except RuntimeError:  # its thread changed what is listed
            return QuorumState()
        reachable = frozenset(name for address, name in self._ids.items() if status.get(f"partner_node_status_server_{address}") == 2)
        return QuorumState(_ROLES.get(status["state"], ""), bool(status["has_quorum"]), log.applied, reachable)


def _ignore(_result: Any, _error: Any) -> None:
    """Whether a message came through is not of interest: the next ones say the same."""


def _bare(address: str) -> str:
    """As PySyncObj writes addresses: IPv6 without brackets."""
    return address.replace("[", "").replace("]", "")
