"""Three whole Raft nodes in one process for unit tests: a loop in virtual time, a network and disks in memory.

Small on purpose and without random faults (``tests/sim`` has those): messages take a fixed time, a test breaks what it wants broken.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from dledger.core.config import CoreConfig
from dledger.core.effects import RoleChanged
from dledger.core.types import EntryKind, Membership, NodeId, Role
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.node import NodeIdentity, RaftNode, RaftSettings
from dledger.runtime.env import After, Buffer, Environment, FileCut, FileWrite, FolderSize, Place, SocketHandle, SyncFailedError
from dledger.snapshot.plan import StateSnapshot
from dledger_wire.errors import AddressInUseError, DledgerError, UnreachableError
from dledger_wire.rpc.transport import ByteStream, Channel, Network, Server, StreamHandler, UnaryHandler
from dledger_wire.security.principal import ANONYMOUS
from tests.byte_streams import TaskwiseStream
from tests.sim.disk import measured
from tests.sim.disk_content import Unreadable

LATENCY_S = 0.0005
SYNC_S = 0.001


class _InstantSelector(selectors.SelectSelector):
    """Waiting costs no time: the loop's clock jumps instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen, but somebody waits")
        if timeout > 0:
            self.loop.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing is ready."""

    def __init__(self) -> None:
        selector = _InstantSelector()
        selector.loop = self
        self.now_s = 1000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


def run(scenario: Awaitable[None], limit_s: float = 600) -> None:
    """Run a scenario in virtual time; ``limit_s`` is virtual too."""

    async def bounded() -> None:
        await asyncio.wait_for(scenario, limit_s)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(bounded())


class LoopClock:
    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()


# Network


class _Pipe:
    """One direction of a stream."""

    def __init__(self, broken: asyncio.Event) -> None:
        self.error: DledgerError = UnreachableError("the connection broke")  # what breaking it raises at the end that reads
        self._under_way: deque[bytes | None] = deque()
        self._messages: deque[bytes | None] = deque()
        self._wake = asyncio.Event()
        self._broken = broken

    def carry(self, message: bytes | None) -> None:
        """Timers of the same time fire in any order, messages of a stream arrive in theirs."""
        self._under_way.append(message)
        asyncio.get_running_loop().call_later(LATENCY_S, self._deliver)

    def _deliver(self) -> None:
        self._messages.append(self._under_way.popleft())
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def get(self) -> bytes | None:
        while not self._messages:
            if self._broken.is_set():
                raise self.error
            self._wake.clear()
            await self._wake.wait()
        return self._messages.popleft()


class _Connection:
    """A stream between two processes."""

    def __init__(self, net: MemoryNetwork, caller: str, callee: str) -> None:
        self.net, self.ends = net, (caller, callee)
        self.broken = asyncio.Event()
        self.pipes = (_Pipe(self.broken), _Pipe(self.broken))  # read by the callee, read by the caller

    def break_up(self) -> None:
        self.broken.set()
        for pipe in self.pipes:
            pipe.wake()


class _End(TaskwiseStream):
    def __init__(self, connection: _Connection, side: int) -> None:
        self._connection, self._side = connection, side

    async def read(self) -> bytes | None:
        return await self._connection.pipes[1 - self._side].get()

    async def write(self, message: bytes) -> None:
        assert type(message) is bytes
        if self._connection.broken.is_set():
            raise UnreachableError("the connection broke")
        self._connection.net.carry(self._connection, self._side, message)

    def write_now(self, message: bytes) -> bool:
        assert type(message) is bytes
        if self._connection.broken.is_set():
            return False
        self._connection.net.carry(self._connection, self._side, message)
        return True

    async def close(self) -> None:
        if not self._connection.broken.is_set():
            self._connection.net.carry(self._connection, self._side, None)


class _Context:
    principal = ANONYMOUS

    def __init__(self, peer: str, metadata: Mapping[str, str]) -> None:
        self.peer, self.metadata = peer, metadata


class MemoryNetwork:
    """All processes' network.  ``cut`` holds pairs of processes whose messages vanish."""

    def __init__(self) -> None:
        self.servers: dict[str, tuple[str, dict[str, Any]]] = {}
        self.connections: list[_Connection] = []
        self.cut: set[tuple[str, str]] = set()
        self.owners: dict[str, str] = {}

    def process(self, name: str) -> Network:
        return _Process(self, name)

    def carry(self, connection: _Connection, side: int, message: bytes | None) -> None:
        sender, receiver = connection.ends[side], connection.ends[1 - side]
        if (sender, receiver) in self.cut:
            return
        connection.pipes[side].carry(message)

    def isolate(self, name: str, others: Sequence[str]) -> None:
        for other in others:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        """Connections that lost messages break, as TCP's would."""
        for connection in self.connections:
            if connection.ends in self.cut or connection.ends[::-1] in self.cut:
                connection.break_up()
        self.cut.clear()

    def kill(self, name: str) -> None:
        for address in [address for address, (owner, _) in self.servers.items() if owner == name]:
            del self.servers[address]
        for connection in self.connections:
            if name in connection.ends:
                asyncio.get_running_loop().call_later(LATENCY_S, connection.break_up)
        self.connections = [connection for connection in self.connections if name not in connection.ends]


class _Process:
    def __init__(self, net: MemoryNetwork, name: str) -> None:
        self._net, self._name = net, name

    def connect(self, address: str) -> Channel:
        return _MemoryChannel(self._net, self._name, address)

    def serve(self, address: str) -> Server:
        return _MemoryServer(self._net, self._name, address)


class _MemoryChannel:
    def __init__(self, net: MemoryNetwork, name: str, address: str) -> None:
        self._net, self._name, self._address = net, name, address
        self._connections: list[_Connection] = []

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        name, handlers = self._net.servers.get(self._address, ("nobody", {}))
        await asyncio.sleep(LATENCY_S)
        if method not in handlers or (self._name, name) in self._net.cut:
            raise UnreachableError(self._address)
        answer: bytes = await asyncio.wait_for(handlers[method](request, _Context(f"{self._name}:1", {})), timeout_s)
        await asyncio.sleep(LATENCY_S)
        return answer

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        found = self._net.servers.get(self._address)
        callee, handlers = found if found is not None else ("nobody", {})
        connection = _Connection(self._net, self._name, callee)
        cut = (self._name, callee) in self._net.cut
        if found is None or method not in handlers or cut:
            asyncio.get_running_loop().call_later(LATENCY_S, connection.break_up)
            return _End(connection, 0)
        self._net.connections.append(connection)
        self._connections.append(connection)
        asyncio.get_running_loop().create_task(_serve(handlers[method], connection, _Context(f"{self._name}:1", dict(metadata or {}))))
        return _End(connection, 0)

    async def close(self) -> None:
        for connection in self._connections:
            connection.break_up()


async def _serve(handler: StreamHandler, connection: _Connection, context: _Context) -> None:
    try:
        await handler(_End(connection, 1), context)
    except DledgerError as error:
        connection.pipes[1].error = error  # the caller is told
        connection.break_up()
    else:
        await _End(connection, 1).close()


class _MemoryServer:
    def __init__(self, net: MemoryNetwork, name: str, address: str) -> None:
        self._net, self._name, self._address = net, name, address
        self._handlers: dict[str, Any] = {}

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._handlers[method] = handler

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._handlers[method] = handler

    async def start(self) -> None:
        if self._address in self._net.servers:
            raise AddressInUseError(self._address)
        self._net.servers[self._address] = (self._name, self._handlers)

    async def stop(self, grace_s: float) -> None:
        if self._net.servers.get(self._address, ("", None))[0] == self._name:
            self._net.kill(self._name)


# Disk


class MemoryDisk:
    """Files in memory, synced content apart: ``crash`` gives the disk as a new process would find it after a power failure."""

    writes_now = False  # small writes are done at once, as on a fast disk

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self.full = False
        self.fail_sync = False
        self.dead = False
        self.syncs = 0
        self.sync_s: dict[str, float] = {}  # of files whose paths begin with these
        self.open_files: set[_MemoryFile] = set()

    def crash(self) -> MemoryDisk:
        self.dead = True
        after = MemoryDisk()
        after.files = {path: bytearray(data) for path, data in self.synced.items()}
        after.synced = dict(self.synced)
        after.unreadable = self.unreadable
        return after

    async def open(self, path: str, *, create: bool = False) -> _MemoryFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            self.files[path] = bytearray()
            self.synced[path] = b""
        file = _MemoryFile(self, path)
        self.open_files.add(file)
        return file

    async def exists(self, path: str) -> bool:
        return path in self.files

    async def list(self, folder: str) -> list[str]:
        prefix = folder.rstrip("/") + "/" if folder and folder != "." else ""
        names = {name[len(prefix) :] for name in self.files if name.startswith(prefix)}
        return sorted({name.split("/")[0] + ("/" if "/" in name else "") for name in names})

    async def write_atomic(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        await asyncio.sleep(SYNC_S)
        self.files[path] = bytearray(data)
        self.synced[path] = bytes(data)

    async def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)
        self.synced[new] = self.synced.pop(old)

    async def remove(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]
        self.synced.pop(path, None)

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        return measured({path: len(content) for path, content in self.files.items()}, folder, below=below)

    # Many small files at once: only the store has them.
    async def sizes(self, folder: str) -> dict[str, int]:
        raise NotImplementedError

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        raise NotImplementedError

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        raise NotImplementedError

    async def remove_files(self, paths: Sequence[str]) -> None:
        raise NotImplementedError

    async def free_bytes(self) -> int:
        return 0 if self.full else 1 << 40

    async def total_bytes(self) -> int:
        return 1 << 41

    def local_path(self, path: str) -> str:
        return f"memory/{path}"


class _MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk, self._path = disk, path

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no space left")
        self._put(pos, b"".join(buffers))
        if sync:
            await self.fdatasync()
        else:
            await asyncio.sleep(0)
        if after is not None:
            await after.file.pwrite(after.pos, [after.data])

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        if not self._disk.writes_now or self._disk.dead:
            return False
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no space left")
        self._put(pos, b"".join(buffers))
        if self._disk.fail_sync:
            raise SyncFailedError(errno.EIO, "sync failed")
        self._disk.syncs += 1
        self._disk.synced[self._path] = bytes(self._disk.files[self._path])
        if after is not None:
            cast(_MemoryFile, after.file)._put(after.pos, bytes(after.data))
        return True

    def _put(self, pos: int, data: bytes) -> None:
        content = self._disk.files[self._path]
        unreadable = self._disk.unreadable.get(self._path)
        if unreadable is not None and not unreadable.takes(pos, pos + len(data)):
            raise OSError(errno.EIO, "input/output error", self._path)
        if len(content) < pos:
            content.extend(bytes(pos - len(content)))
        content[pos : pos + len(data)] = data
        if unreadable is not None:
            unreadable.written(pos, pos + len(data))

    async def pread(self, pos: int, size: int) -> bytes:
        if self._path in self._disk.unreadable and not self._disk.unreadable[self._path].spares(pos, size):
            raise OSError(errno.EIO, "input/output error", self._path)
        return bytes(self._disk.files[self._path][pos : pos + size])

    async def pread_each(self, places: Sequence[Place]) -> list[bytes]:
        return [await self.pread(pos, size) for pos, size in places]

    async def send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        raise OSError(errno.EOPNOTSUPP, "there are no sockets here", self._path)

    async def fdatasync(self) -> None:
        data = bytes(self._disk.files[self._path])
        slow_s = [sync_s for prefix, sync_s in self._disk.sync_s.items() if self._path.startswith(prefix)]
        await asyncio.sleep(max(slow_s, default=SYNC_S))
        if self._disk.fail_sync:
            raise SyncFailedError(errno.EIO, "sync failed")
        if not self._disk.dead:
            self._disk.syncs += 1
            self._disk.synced[self._path] = data

    async def allocate(self, size: int, *, fill: bool) -> None:
        content = self._disk.files[self._path]
        if len(content) < size:
            content.extend(bytes(size - len(content)))
        if fill:
            await self.fdatasync()

    async def truncate(self, size: int) -> None:
        del self._disk.files[self._path][size:]
        if self._path in self._disk.unreadable:
            self._disk.unreadable[self._path].cut(size)

    async def size(self) -> int:
        return len(self._disk.files[self._path])

    async def close(self) -> None:
        self._disk.open_files.discard(self)


# Nodes


class Recorder:
    """A state machine that keeps what it was given; ``save`` makes it durable, as a copy does that came from a peer."""

    STATE = "state.json"

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.applies_now = True
        self.applied_index = 0
        self.bodies: list[bytes] = []
        self.roles: list[RoleChanged] = []
        self.disk = disk or MemoryDisk()
        self.suspended = 0

    async def recover(self, log: Log) -> None:
        if self.STATE in self.disk.files:
            state = json.loads(bytes(self.disk.files[self.STATE]))
            assert log.first_index - 1 <= state["index"] <= log.last.index
            self.applied_index, self.bodies = state["index"], [bytes.fromhex(body) for body in state["bodies"]]

    async def capture_state(self) -> StateSnapshot:
        state = {"index": self.applied_index, "bodies": [body.hex() for body in self.bodies]}
        return StateSnapshot(self.applied_index, {self.STATE: json.dumps(state).encode(), "old-state.json": None})

    async def suspend(self) -> None:
        self.suspended += 1

    async def save(self) -> None:
        content = (await self.capture_state()).files[self.STATE]
        assert content is not None
        await self.disk.write_atomic(self.STATE, content)

    async def apply(self, entries: Sequence[RawEntry]) -> None:
        self._record(entries)

    def apply_now(self, entries: Sequence[RawEntry]) -> None:
        self._record(entries)

    def _record(self, entries: Sequence[RawEntry]) -> None:
        for entry in entries:
            assert entry.index == self.applied_index + 1
            self.applied_index = entry.index
            if entry.kind is EntryKind.NORMAL:
                self.bodies.append(entry.body_bytes())

    def role_changed(self, event: RoleChanged) -> None:
        self.roles.append(event)


class Text:
    """A payload that writes down where it was put when asked to."""

    def __init__(self, text: str | bytes, size_bytes: int = 0) -> None:
        self._data = text if isinstance(text, bytes) else text.encode()
        self._data = self._data.ljust(size_bytes, b".")
        self.size_bytes = len(self._data)
        self.sealed: list[tuple[int, int, int]] = []

    def seal(self, pos: int, index: int, term: int) -> Sequence[Buffer]:
        self.sealed.append((pos, index, term))
        return (self._data,)


class Cluster:
    """Nodes n0, n1, ... of one group."""

    def __init__(self, size: int = 3, **settings: Any) -> None:
        self.net = MemoryNetwork()
        self.names = [NodeId(f"n{number}") for number in range(size)]
        self.addresses: dict[str, str] = {name: f"{name}:1" for name in self.names}
        self.disks: dict[NodeId, MemoryDisk] = {name: MemoryDisk() for name in self.names}
        self.nodes: dict[NodeId, RaftNode] = {}
        self.machines: dict[NodeId, Recorder] = {}
        self.settings = settings
        self.starts = 0
        self.boot_id = ""

    async def start(self, *names: NodeId) -> None:
        for name in names or self.names:
            await self.start_one(name)

    async def start_one(self, name: NodeId, *, store_id: str = "", cluster: str = "c", told: str = "") -> RaftNode:
        """``told``: the address that it says it is at, if that is not where it is."""
        self.starts += 1
        values: dict[str, Any] = {
            "peers": self.addresses,
            "membership": Membership(tuple(self.names)),
            "core": CoreConfig(),
            "log": LogConfig(segment_bytes=16 << 20, fill_window_bytes=0),
            **self.settings,
        }
        network = self.net.process(name)
        draws, disk = random.Random(f"{name}{self.starts}"), self.disks[name]
        env = Environment(clock=LoopClock(), random=draws, disk=disk, network=network, boot_id=self.boot_id)
        identity = NodeIdentity(cluster, "g", name, store_id or f"store-{name}", told or self.addresses[name])
        machine = self.machines[name] = Recorder(self.disks[name])
        node = await RaftNode.open(identity, RaftSettings(**values), env, machine, log_opened=machine.recover)
        self.nodes[name] = node
        server = network.serve(self.addresses[name])
        node.register(server)
        await server.start()
        return node

    async def kill(self, name: NodeId) -> None:
        """kill -9 and power failure at once: what was not synced is gone."""
        self.net.kill(name)
        node = self.nodes.pop(name)
        self.disks[name] = self.disks[name].crash()
        node._replica.driver.stop()
        await node._replica.tasks.stop()

    async def stop(self) -> None:
        for node in list(self.nodes.values()):
            await node.stop(hand_over=False)

    async def until(self, condition: Callable[[], Any], what: str = "", limit_s: float = 30) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not (value := condition()):
            assert loop.time() < deadline, (
                f"not within {limit_s} s: {what}: {[(n.identity.node_id, n.role, n.term) for n in self.nodes.values()]}"
            )
            await asyncio.sleep(0.002)
        return value

    async def leader(self) -> RaftNode:
        def settled(node: RaftNode) -> bool:
            """All it has met are named in its log, so that nothing is written there unasked."""
            core = node._replica.core
            return core.with_known_stores(core.membership) == core.membership and core.membership_index <= core.commit

        def confirmed() -> RaftNode | None:
            leaders = [node for node in self.nodes.values() if node.role is Role.LEADER and node.is_confirmed_leader]
            leader = max(leaders, key=lambda node: node.term) if leaders else None
            return leader if leader is not None and settled(leader) else None

        node: RaftNode = await self.until(confirmed, "a confirmed leader")
        return node

    def followers(self, leader: RaftNode) -> list[RaftNode]:
        return [node for node in self.nodes.values() if node is not leader]
