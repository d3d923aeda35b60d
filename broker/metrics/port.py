"""The metrics port of a process: a thread that serves HTTP, and the way from there to the loop of the process and back.

Owns both directions.  The loop of the process only looks at its state; text is made, compressed and sent by the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from broker.config.cluster_file import ClusterConfig
from broker.metrics.health import Check, loop_check, stopped_check
from broker.metrics.process_samples import add_connections, add_process
from broker.metrics.samples import Samples, SamplesRegistry
from broker.process.loop_watch import LoopWatch
from broker.process.serving_thread import ServingThread
from broker.security.access import CALLER_ADDRESS, CLUSTER_NAME, AccessControl
from dledger_wire.errors import AuthenticationFailedError, NotReadyError
from dledger_wire.security.admission import Admission
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.tls import TlsContexts
from dledger_wire.tcp.arrivals import Arrivals
from store.commands.security import Action, Resource

ANSWER_S = 5.0  # what the loop of the process has to answer

T = TypeVar("T")


class Collecting(Protocol):
    """Looks at a process, on its loop."""

    async def samples(self) -> Samples: ...


@dataclass(frozen=True, slots=True)
class Watched:
    """The content of a port.

    Attributes:
        collecting: The samples at ``/metrics``.
        ready: What else ``/readyz`` checks; called on the loop of the process.
        failure: Why the process stopped by itself, None while it has not; called on any thread.
        arrivals: The connections of the process.
        access: The callers that may describe the cluster.
        loop: Of the process.
    """

    collecting: Collecting
    ready: Callable[[], Sequence[Check]]
    failure: Callable[[], BaseException | None]
    arrivals: Arrivals
    access: AccessControl
    loop: LoopWatch


@contextlib.asynccontextmanager
async def metrics_port(cluster: ClusterConfig, address: str | None, security: NetworkSecurity, watched: Watched) -> AsyncIterator[None]:
    """Serve while the context is open; ``address`` is the process's own, None: that of the cluster file, if there is one."""
    address = address or cluster.metrics.address
    if address is None:
        yield
        return
    from broker.metrics.http_server import HttpServer  # aiohttp takes an eighth of the time in which a node starts

    users = cluster.security is not None and cluster.security.users is not None and not cluster.metrics.anonymous
    source = _ProcessSource(watched, security.admission if users else None)
    port = ServingThread(HttpServer(address, source, _https(security) if cluster.metrics.tls else None), "metrics")
    await port.start()
    try:
        yield
    finally:
        await port.stop()


def _https(security: NetworkSecurity) -> TlsContexts | None:
    """With the files of the process.  No client certificate is required here: probes have none."""
    return None if security.tls is None else security.tls.without_client_certificates(("http/1.1",))


class _ProcessSource:
    """Implements ``broker.metrics.http_server.Source``."""

    def __init__(self, watched: Watched, admission: Admission | None) -> None:
        self._watched, self._admission = watched, admission
        self._loop = asyncio.get_running_loop()
        self._registry = SamplesRegistry()
        self._looking = asyncio.Lock()  # of the loop of the process

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop of the process."""
        if self._loop.is_closed():
            work.close()
            raise NotReadyError("the process is stopping")
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_S)
        except TimeoutError:
            raise NotReadyError(f"the event loop did not answer within {ANSWER_S:g} s") from None

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        samples = await self._ask(self._look())
        add_process(samples, self._watched.loop.stats())
        return self._registry.render(samples, accept)

    async def _look(self) -> Samples:
        async with self._looking:
            samples = await self._watched.collecting.samples()
            add_connections(samples, self._watched.arrivals)
            return samples

    async def authorize(self, peer: str, name: str, password: str) -> None:
        if self._admission is not None:
            await self._ask(self._authorize(self._admission, peer, name, password))

    async def _authorize(self, admission: Admission, peer: str, name: str, password: str) -> None:
        CALLER_ADDRESS.set(peer)  # of this task only
        try:
            principal = await _admitted(admission, peer, name, password)
        except AuthenticationFailedError as error:
            admission.refused(peer, error)
            raise
        self._watched.access.require(principal, Action.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)

    def alive(self) -> Sequence[Check]:
        return [loop_check(self._watched.loop.silent_s), stopped_check(self._watched.failure)]

    async def ready(self) -> Sequence[Check]:
        try:
            return await self._ask(self._ready())
        except NotReadyError as error:
            return [Check("answer", error.message)]

    async def _ready(self) -> Sequence[Check]:
        return self._watched.ready()


async def _admitted(admission: Admission, peer: str, name: str, password: str) -> Principal:
    if not name:
        raise AuthenticationFailedError("expected a user with a password", reason="no_credentials")
    if not await admission.password_fits(peer, name, password):
        raise AuthenticationFailedError("name or password is wrong", reason="wrong_credentials", user=name)
    return admission.admit(None, name)
