"""The process of one node or one name server: event loop, signals, log, data folder lock, and exit status.

Owns everything these need from this machine and from nothing else; ``broker.node`` and ``broker.nameserver.node`` are what runs.  Exit
status: 0 after an orderly stop, 1 after an error printed in one line on stderr, 130 after a second signal.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from broker.config.cluster_file import ClusterConfig, NodeSettings
from broker.config.name_servers import NameServerSettings
from broker.config.placement import group_warnings
from broker.config.replicas import SpareConfig
from broker.membership.spare_binding import Binding, bound_settings, read_binding
from broker.process.data_dir_lock import DataFolderLock, lost_folder
from broker.process.folder_formats import refuse_newer_files
from broker.process.identity import open_identity
from broker.process.kernel_limits import forbid_core_dumps, raise_handle_limit
from broker.process.log_ring import LogRing
from broker.process.logging_setup import ProcessLog, configure_logging
from broker.process.private_folder import make_private
from broker.process.service_manager import ServiceManager
from dledger.replica.unsynced import LogDivergedError
from dledger_wire.clock import SystemClock
from dledger_wire.errors import DeadlineExceededError, DledgerError
from dledger_wire.event_loop import new_event_loop

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_GRACE_S = 20.0
NOT_STOPPED = f"did not stop within {STOP_GRACE_S:g} s"
_NOTHING_BESIDE = nullcontext()
NAME_SERVERS = "name-servers"  # stands in a name server's identity.json where a node has its group


def run_node(settings: NodeSettings, data: str, log_file: str = "", beside: AbstractContextManager[object] = _NOTHING_BESIDE) -> int:
    """Run a node until a signal stops it; its files are in ``data``/ID.  ``beside``: what is open as long as the node is."""
    handles = _prepare_process()
    folder = str((Path(data) / settings.node.id).resolve())

    def work(log: ProcessLog, manager: ServiceManager) -> None:
        for warning in group_warnings(settings.group):
            logger.warning("%s", warning, extra={"event": "cluster_file_advice"})
        logger.info("limit of open files and connections: %s", handles if handles >= 0 else "none")
        with beside:
            _run_replica(settings, folder, log, manager)

    return _with_folder(folder, settings.cluster, settings.group.name, settings.node.id, log_file, work)


def run_spare(cluster: ClusterConfig, spare: SpareConfig, data: str, log_file: str = "") -> int:
    """Run a spare node: it waits until a replica group takes it in, and is a node of that group from then on."""
    _prepare_process()
    folder = str((Path(data) / spare.id).resolve())

    def work(log: ProcessLog, manager: ServiceManager) -> None:
        binding = _run(log, _wait_as_spare(cluster, spare, folder, log, manager))
        if binding is not None:
            log.place(group=binding.group)
            _run_replica(bound_settings(cluster, spare, binding), folder, log, manager)

    return _with_folder(folder, cluster, "", spare.id, log_file, work)


def _prepare_process() -> int:
    """Set up handles, threads and garbage collection for a replica; the limit of open files, -1 for none."""
    handles = raise_handle_limit()
    # The disk threads need the interpreter for moments only; at the default 5 ms they would wait for it longer than for the disk.
    sys.setswitchinterval(0.0005)
    # Nothing here makes cycles at the rate of messages; what the imports left need not be looked at ever again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return handles


def _run_replica(settings: NodeSettings, folder: str, log: ProcessLog, manager: ServiceManager) -> None:
    """Serve until a signal or a failure ends it; once more when the log has to start from scratch."""
    while True:
        try:
            _run(log, _serve(settings, folder, log, manager))
            return
        except LogDivergedError as error:
            logger.warning("restarting with an empty log: %s", error, extra={"event": "log_diverged"})


async def _wait_as_spare(
    cluster: ClusterConfig, spare: SpareConfig, folder: str, log: ProcessLog, manager: ServiceManager
) -> Binding | None:
    """The replica group that it belongs to; None when a signal ends the process first."""
    from broker.membership.waiting_spare import WaitingSpare
    from broker.metrics.health import spare_notice
    from broker.metrics.ports import spare_port
    from broker.process.machine import machine_of
    from dledger_wire.security import principal

    machine = machine_of(cluster, principal.node(cluster.cluster, principal.SPARE_GROUP, spare.id), folder)
    await refuse_newer_files(machine.env.disk)
    bound = await read_binding(machine.env.disk)
    if bound is not None:
        return bound
    waiting = WaitingSpare(cluster, spare, machine.env, process=machine.stats, security=machine.security)
    waiting.log_ring = log.ring
    async with spare_port(cluster, spare, waiting, machine), manager.notifying(spare_notice):
        return await _until_stopped(waiting, waiting.stop, waiting.addresses, folder, manager, lambda: waiting.bound)


def run_name_server(settings: NameServerSettings, data: str, log_file: str = "") -> int:
    """Run a name server until a signal stops it; ``data``/ID is its folder, which holds its lock and whose it is."""
    raise_handle_limit()
    folder = str((Path(data) / settings.server.id).resolve())

    def work(log: ProcessLog, manager: ServiceManager) -> None:
        _run(log, _serve_names(settings, folder, log, manager))

    return _with_folder(folder, settings.cluster, "", settings.server.id, log_file, work)


def _with_folder(
    folder: str, cluster: ClusterConfig, group: str, name: str, log_file: str, work: Callable[[ProcessLog, ServiceManager], None]
) -> int:
    """Do ``work`` with the folder locked and the log set up; returns the exit status."""
    lock, log = DataFolderLock(folder), None
    try:
        lock.acquire()
        if cluster.security is not None:
            make_private(folder, log_file)
            forbid_core_dumps()
        log = configure_logging(group=group, node=name, ring=LogRing(SystemClock().wall_ms), log_file=log_file)
        work(log, ServiceManager.of_environment(os.environ))
    except (DledgerError, OSError) as found:
        error = _why(lock, found)
        text = str(error) or type(error).__name__  # a TimeoutError is an OSError without a text
        if log is not None:  # before that the line below is enough
            logger.error("stopped: %s", text, extra={"event": "stopped", "code": getattr(error, "code", "OS")})
        print(f"dledger: {text}", file=sys.stderr, flush=True)
        return 1
    finally:
        if log is not None:
            log.write_repeats()
        lock.release()
    return 0


def _why(lock: DataFolderLock, error: Exception) -> Exception:
    """The first cause: every file is missing when the folder is gone."""
    try:
        lock.check()
    except DledgerError as gone:
        return gone
    return error


def _run(log: ProcessLog, work: Coroutine[Any, Any, T]) -> T:
    async def logged() -> T:
        async with log.writing_repeats():
            return await work

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(logged())


async def _serve(settings: NodeSettings, folder: str, log: ProcessLog, manager: ServiceManager) -> None:
    from broker.config.added_name_servers import AddedNameServers
    from broker.metrics.health import node_notice
    from broker.metrics.ports import node_port
    from broker.node import BrokerNode
    from broker.process.machine import machine_of
    from broker.process.process_reader import local_utc_offset_ms
    from broker.rocketmq_port import RemotingNode
    from dledger_wire.security import principal

    is_spare = settings.cluster.spare(settings.node.id) is not None  # its certificate has no group, whichever took it in
    group = principal.SPARE_GROUP if is_spare else settings.group.name
    own = principal.node(settings.cluster.cluster, group, settings.node.id)
    machine = machine_of(settings.cluster, own, folder, lambda: node.security.known_users())
    node = BrokerNode(settings, machine.env, process=machine.stats, utc_offset_ms=local_utc_offset_ms, security=machine.security)
    node.log_ring = log.ring
    node.connections = machine.network.connections
    node.added_name_servers = AddedNameServers(settings.cluster).look
    log.term = lambda: node.raft.term if node.is_open else None
    served = RemotingNode(node, machine)
    async with node_port(node, machine), manager.notifying(lambda: node_notice(node)):
        await _until_stopped(served, lambda: served.stop(hand_over=not node.failed.done()), settings.addresses, folder, manager)


async def _serve_names(settings: NameServerSettings, folder: str, log: ProcessLog, manager: ServiceManager) -> None:
    from broker.metrics.health import name_server_notice
    from broker.metrics.ports import name_server_port
    from broker.nameserver.node import NameServerNode
    from broker.nameserver.pysyncobj_quorum import quorum_of
    from broker.process.machine import machine_of
    from broker.rocketmq_port import RemotingNameServer
    from dledger_wire.security import principal

    quorum = quorum_of(settings)
    own = principal.name_server(settings.cluster.cluster, settings.server.id)
    machine = machine_of(settings.cluster, own, folder, lambda: server.known_users())
    await open_identity(machine.env, settings.cluster.cluster, NAME_SERVERS, settings.server.id)
    server = NameServerNode(settings, machine.env, quorum, process=machine.stats, security=machine.security)
    server.log_ring = log.ring
    served = RemotingNameServer(server, machine)
    async with name_server_port(server, machine), manager.notifying(lambda: name_server_notice(server)):
        await _until_stopped(served, served.stop, settings.addresses, folder, manager)


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
    manager: ServiceManager,
    done: Callable[[], asyncio.Future[T] | None] = lambda: None,
) -> T | None:
    """Open it, and stop it in order after a signal, when it failed or when it is ``done``; raises why it failed."""
    signalled = _stop_signal()
    signalled.add_done_callback(lambda _: manager.stopping("stops in order; a leader hands its leadership over first"))
    if not await started(served.open(), signalled):
        logger.info("stopped by a signal during startup")
        return None
    manager.listening()
    end = done()
    lost = asyncio.ensure_future(lost_folder(folder))
    try:
        logger.info("started", extra={"event": "started", "addresses": list(addresses), "pid": os.getpid(), "data": folder})
        ended: list[asyncio.Future[Any]] = [signalled, served.failed, lost, *([end] if end is not None else [])]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() and not served.failed.done():
            served.failed.set_result(lost.result())
    finally:
        lost.cancel()
        logger.info("stopping", extra={"event": "stopping"})
        is_late = await _stopped_late(stop())
    if served.failed.done():
        raise served.failed.result()
    if is_late:
        raise DeadlineExceededError(NOT_STOPPED)
    return end.result() if end is not None and end.done() else None


async def _stopped_late(stopping: Coroutine[Any, Any, None]) -> bool:
    """Stop in order; True when that was given up.  It is logged here: the reason of a failure counts more than a failed stop."""
    try:
        await asyncio.wait_for(stopping, STOP_GRACE_S)
    except TimeoutError:
        logger.error(NOT_STOPPED, extra={"event": "not_stopped"})
        return True
    return False


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
    """A future that SIGTERM, SIGINT or SIGHUP resolves; a second one of the first two ends the process at once.

    SIGHUP is of a terminal that is closed: the shell and the kernel send it both, which is no impatience.  ``nohup`` is heeded.
    """
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[None] = loop.create_future()

    def on_signal(*, at_once: bool) -> None:
        if not signalled.done():
            signalled.set_result(None)
        elif at_once:
            os._exit(130)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, functools.partial(on_signal, at_once=True))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, functools.partial(on_signal, at_once=False))
    return signalled
