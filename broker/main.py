"""The process of one node or one name server: event loop, signals, log, data folder lock, and exit status.

Owns everything these need from this machine and from nothing else; ``broker.node`` and ``broker.nameserver.node`` are what runs.  Exit
status: 0 after an orderly stop, 1 after an error printed in one line on stderr, 130 after a second signal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from broker.config.cluster_file import ClusterConfig, NodeSettings
from broker.config.name_servers import NameServerSettings
from broker.config.placement import group_warnings
from broker.config.replicas import SpareConfig
from broker.process.allocator import restart_with_malloc_settings
from broker.process.core_dumps import forbid_core_dumps
from broker.process.data_dir_lock import DataFolderLock
from broker.process.file_limit import raise_handle_limit
from broker.process.identity import open_identity
from broker.process.logging_setup import configure_logging
from broker.process.private_folder import make_private
from broker.spares.binding import Binding, bound_settings, read_binding
from dledger.replica.unsynced import LogDivergedError
from dledger_wire.errors import DledgerError
from dledger_wire.event_loop import new_event_loop

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_GRACE_S = 20.0
NAME_SERVERS = "name-servers"  # stands in a name server's identity.json where a node has its group


def run_node(settings: NodeSettings, data: str, log_file: str = "") -> int:
    """Run a node until a signal stops it; its files are in ``data``/ID."""
    handles = _prepare_process()
    folder = str((Path(data) / settings.node.id).resolve())

    def work() -> None:
        for warning in group_warnings(settings.group):
            logger.warning("%s", warning)
        logger.info("limit of open files and connections: %s", handles if handles >= 0 else "none")
        _run_replica(settings, folder)

    return _with_folder(folder, settings.cluster, settings.group.name, settings.node.id, log_file, work)


def run_spare(cluster: ClusterConfig, spare: SpareConfig, data: str, log_file: str = "") -> int:
    """Run a spare node: it waits until a replica group takes it in, and is a node of that group from then on."""
    _prepare_process()
    folder = str((Path(data) / spare.id).resolve())

    def work() -> None:
        binding = _run(_wait_as_spare(cluster, spare, folder))
        if binding is not None:
            _run_replica(bound_settings(cluster, spare, binding), folder)

    return _with_folder(folder, cluster, "", spare.id, log_file, work)


def _prepare_process() -> int:
    """Set up memory, handles, threads and garbage collection for a replica; the limit of open files, -1 for none."""
    restart_with_malloc_settings()
    handles = raise_handle_limit()
    # The disk threads need the interpreter for moments only; at the default 5 ms they would wait for it longer than for the disk.
    sys.setswitchinterval(0.0005)
    # Nothing here makes cycles at the rate of messages; what the imports left need not be looked at ever again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return handles


def _run_replica(settings: NodeSettings, folder: str) -> None:
    """Serve until a signal or a failure ends it; once more when the log has to begin anew."""
    while True:
        try:
            _run(_serve(settings, folder))
            return
        except LogDivergedError as error:
            logger.warning("restarting with an empty log", extra={"reason": str(error)})


async def _wait_as_spare(cluster: ClusterConfig, spare: SpareConfig, folder: str) -> Binding | None:
    """The replica group that it belongs to; None when a signal ends the process first."""
    from broker.process.audit_file import file_audit
    from broker.process.process_stats import read_process_stats
    from broker.security.setup import process_security
    from broker.spares.waiting import WaitingSpare
    from dledger.runtime.real_env import real_environment
    from dledger_wire.security import principal
    from dledger_wire.tcp.mixed_network import MixedNetwork

    own = principal.node(cluster.cluster, principal.SPARE_GROUP, spare.id)
    security = process_security(cluster, own, audit_sink=file_audit(folder))
    env = real_environment(folder, MixedNetwork(security.network, socket_folder=folder))
    bound = await read_binding(env.disk)
    if bound is not None:
        return bound
    waiting = WaitingSpare(cluster, spare, env, process=read_process_stats, security=security)
    return await _until_stopped(waiting, waiting.stop, waiting.addresses, folder, lambda: waiting.bound)


def run_name_server(settings: NameServerSettings, data: str, log_file: str = "") -> int:
    """Run a name server until a signal stops it; ``data``/ID is its folder, which holds its lock and whose it is."""
    raise_handle_limit()
    folder = str((Path(data) / settings.server.id).resolve())
    return _with_folder(folder, settings.cluster, "", settings.server.id, log_file, lambda: _run(_serve_names(settings, folder)))


def _with_folder(folder: str, cluster: ClusterConfig, group: str, name: str, log_file: str, work: Callable[[], None]) -> int:
    """Do ``work`` with the folder locked and the log set up; returns the exit status."""
    lock, has_log = DataFolderLock(folder), False
    try:
        lock.acquire()
        if cluster.security is not None:
            make_private(folder, log_file)
            forbid_core_dumps()
        configure_logging(group=group, node=name, log_file=log_file)
        has_log = True
        work()
    except (DledgerError, OSError) as error:
        if has_log:  # before that the line below is enough
            logger.error("stopped", extra={"error": str(error), "code": getattr(error, "code", "OS")})
        print(f"dledger: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        lock.release()
    return 0


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def _serve(settings: NodeSettings, folder: str) -> None:
    from broker.node import BrokerNode
    from broker.process.audit_file import file_audit
    from broker.process.process_stats import local_utc_offset_ms, read_process_stats
    from broker.security.setup import process_security
    from dledger.runtime.real_env import real_environment
    from dledger_wire.security import principal
    from dledger_wire.tcp.mixed_network import MixedNetwork

    is_spare = settings.cluster.spare(settings.node.id) is not None  # its certificate has no group, whichever took it in
    group = principal.SPARE_GROUP if is_spare else settings.group.name
    own = principal.node(settings.cluster.cluster, group, settings.node.id)
    security = process_security(settings.cluster, own, lambda: node.known_users(), file_audit(folder))
    env = real_environment(folder, MixedNetwork(security.network, socket_folder=folder))
    node = BrokerNode(settings, env, process=read_process_stats, utc_offset_ms=local_utc_offset_ms, security=security)
    await _until_stopped(node, lambda: node.stop(hand_over=not node.failed.done()), settings.addresses, folder)


async def _serve_names(settings: NameServerSettings, folder: str) -> None:
    from broker.nameserver.node import NameServerNode
    from broker.nameserver.pysyncobj_quorum import quorum_of
    from broker.process.audit_file import file_audit
    from broker.process.process_stats import read_process_stats
    from broker.security.setup import process_security
    from dledger.runtime.real_env import real_environment
    from dledger_wire.security import principal
    from dledger_wire.tcp.mixed_network import MixedNetwork

    quorum = quorum_of(settings)
    own = principal.name_server(settings.cluster.cluster, settings.server.id)
    security = process_security(settings.cluster, own, lambda: server.known_users(), file_audit(folder))
    env = real_environment(folder, MixedNetwork(security.network, socket_folder=folder))
    await open_identity(env, settings.cluster.cluster, NAME_SERVERS, settings.server.id)
    server = NameServerNode(settings, env, quorum, process=read_process_stats, security=security)
    await _until_stopped(server, server.stop, settings.addresses, folder)


class _Served(Protocol):
    """A node or a name server."""

    @property
    def failed(self) -> asyncio.Future[BaseException]: ...
    async def open(self) -> None: ...


async def _until_stopped(
    served: _Served,
    stop: Callable[[], Coroutine[Any, Any, None]],
    addresses: Sequence[str],
    folder: str,
    done: Callable[[], asyncio.Future[T] | None] = lambda: None,
) -> T | None:
    """Open it, and stop it in order after a signal, when it failed or when it is ``done``; raises why it failed."""
    signalled = _stop_signal()
    if not await started(served.open(), signalled):
        logger.info("stopped by a signal during startup")
        return None
    end = done()
    try:
        logger.info("started", extra={"addresses": list(addresses), "pid": os.getpid(), "data": folder})
        ended: list[asyncio.Future[Any]] = [signalled, served.failed, *([end] if end is not None else [])]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    finally:
        logger.info("stopping")
        await asyncio.wait_for(stop(), STOP_GRACE_S)
    if served.failed.done():
        raise served.failed.result()
    return end.result() if end is not None and end.done() else None


async def started(opening: Coroutine[Any, Any, None], signalled: asyncio.Future[None]) -> bool:
    """Run ``opening`` to its end; if ``signalled`` resolves first, cancel it at any point (it cleans up) and return False.

    A start may take long: it waits for peers that have the bytes of damaged entries, and for queues that are rebuilt.
    """
    starting = asyncio.get_running_loop().create_task(opening, name="start")
    await asyncio.wait([signalled, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting], timeout=STOP_GRACE_S)
        if not starting.done() or starting.cancelled():
            return False
    starting.result()
    return True


def _stop_signal() -> asyncio.Future[None]:
    """A future that SIGTERM or SIGINT resolves; the second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if signalled.done():
            os._exit(130)
        signalled.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return signalled
