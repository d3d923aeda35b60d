"""Push consumption: messages a second with 1 and 4 consumers, and how long queues stand still when members come, go and die.

    python -m benchmarks.push [--messages 1000000] [--size 512-1536] [--batch 32] [--rounds 20]

Starts a private cluster.  Throughput: the topic is filled first; consumers are processes that only count, timed from the first listener
call to the last.  Gaps: messages go to every queue every 5 ms; a gap is the longest time in which some queue gave no message to any
listener around the event (join, clean leave, kill -9; concurrent and orderly), less the usual distance.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.bodies import Bodies

ROOT = Path(__file__).resolve().parent.parent

QUEUES = 8
GAP_QUEUES = 4
SEND_EVERY_S = 0.005
SETTLE_S = 2.5


# The consumers' side


def count(bootstrap: str, group: str, topic: str, name: str, file: str, batch: str) -> None:
    """Count messages; a line ``first_ns last_ns count`` is written whenever the counter stands still or ten times a second."""
    from dledger_client import Action, ConsumeContext, PushConsumer, ReceivedMessage

    lock, state, ended = threading.Lock(), [0, 0, 0], threading.Event()

    def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
        now_ns = time.time_ns()
        with lock:
            state[0] = state[0] or now_ns
            state[1] = now_ns
            state[2] += len(messages)
        return Action.COMMIT

    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer = PushConsumer(
        bootstrap,
        group,
        listener,
        client_id=name,
        consume_message_batch_max_size=int(batch),
        consume_threads=4,
        pull_batch_size=2000,
        pull_threshold_for_queue=10_000,
        consume_concurrently_max_span=20_000,
    )
    consumer.subscribe(topic)
    with consumer:
        while not ended.wait(0.1):
            Path(file + ".new").write_text(" ".join(map(str, state)))
            os.replace(file + ".new", file)


def note(bootstrap: str, group: str, topic: str, name: str, file: str, kind: str) -> None:
    """Write a line ``ms queue`` for every message."""
    from dledger_client import Action, ConsumeContext, PushConsumer, ReceivedMessage

    out, ended = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), threading.Event()

    def listener(_messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        os.write(out, b"%d %d\n" % (time.time_ns() // 1_000_000, context.queue_id))
        return Action.COMMIT

    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer = PushConsumer(bootstrap, group, listener, client_id=name, orderly=kind == "orderly")
    consumer.subscribe(topic)
    with consumer:
        ended.wait()


# The measuring side


@contextmanager
def consumers(what: str, names: list[str], *arguments: str, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Consumer processes, ended whatever happens."""
    bootstrap, group, topic, last = arguments
    running: dict[str, subprocess.Popen[bytes]] = {}

    try:
        for name in names:
            running[name] = spawn(what, bootstrap, group, topic, name, str(folder / name), last)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def spawn(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--child", *arguments], env=os.environ | {"PYTHONPATH": str(ROOT)})


def fill(bootstrap: str, topic: str, messages: int, size: str) -> None:
    from dledger_client import Message, Producer

    bodies = Bodies(size)
    with Producer(bootstrap) as producer:
        for number in range(messages):
            producer.send_oneway(Message(topic, bodies.body(number)))
        producer.flush()


def throughput(bootstrap: str, members: int, batch: int, messages: int, folder: Path) -> float:
    """Messages a second of a group with so many members."""
    group = f"count-{members}-{batch}"
    folder = folder / group
    folder.mkdir()
    names = [f"c{number}" for number in range(members)]
    with consumers("count", names, bootstrap, group, "full", str(batch), folder=folder):
        while True:
            time.sleep(0.2)
            states = [list(map(int, (folder / name).read_text().split())) for name in names if (folder / name).exists()]
            if sum(state[2] for state in states) >= messages:
                break
    took_s = (max(state[1] for state in states) - min(state[0] for state in states if state[2])) / 1e9
    return sum(state[2] for state in states) / took_s


class Gaps:
    """Members of one kind around a stream of messages."""

    def __init__(self, bootstrap: str, kind: str, folder: Path) -> None:
        self.bootstrap, self.kind, self.folder = bootstrap, kind, folder / kind
        self.folder.mkdir()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.made = 0

    def join(self) -> None:
        self.made += 1
        name = f"m{self.made:03d}"
        self.running[name] = spawn("note", self.bootstrap, f"gap-{self.kind}", "gaps", name, str(self.folder / name), self.kind)

    def leave(self, *, kill: bool) -> None:
        """The oldest member goes."""
        process = self.running.pop(min(self.running))
        if kill:
            process.kill()
        else:
            process.terminate()
        process.wait()

    def wait_until_all_flow(self) -> None:
        while not all(self.times().values()):
            time.sleep(0.5)
        time.sleep(SETTLE_S)

    def worst_ms(self, event: Callable[[], None]) -> int:
        """The longest silence of a queue around the event."""
        from_ms = time.time_ns() // 1_000_000
        event()
        time.sleep(SETTLE_S)
        upto_ms = time.time_ns() // 1_000_000
        worst = 0
        for times in self.times().values():
            around = [*(at for at in times if from_ms - 100 <= at <= upto_ms), upto_ms]
            worst = max([worst, *(later - sooner for sooner, later in pairwise(around))])
        return worst

    def times(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {queue: [] for queue in range(GAP_QUEUES)}
        for file in self.folder.iterdir():
            for line in file.read_text().splitlines():
                at_ms, queue = line.split()
                found[int(queue)].append(int(at_ms))
        return {queue: sorted(times) for queue, times in found.items()}

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def measure_gaps(bootstrap: str, kind: str, rounds: int, folder: Path) -> dict[str, object]:
    """Join, leave and kill, again and again."""
    gaps = Gaps(bootstrap, kind, folder)
    found: dict[str, list[int]] = {"join": [], "leave": [], "kill": []}
    try:
        gaps.join()
        gaps.join()
        gaps.wait_until_all_flow()
        for number in range(rounds):
            found["join"].append(gaps.worst_ms(gaps.join))
            if number % 2:
                found["leave"].append(gaps.worst_ms(lambda: gaps.leave(kill=False)))
            else:
                found["kill"].append(gaps.worst_ms(lambda: gaps.leave(kill=True)))
            print(kind, number, {name: values[-1:] for name, values in found.items()}, file=sys.stderr, flush=True)
        while len(found["kill"]) < rounds:
            gaps.worst_ms(gaps.join)
            found["kill"].append(gaps.worst_ms(lambda: gaps.leave(kill=True)))
    finally:
        gaps.end()
    return {
        name: {"rounds": len(values), "median_ms": sorted(values)[len(values) // 2], "worst_ms": max(values)}
        for name, values in found.items()
    }


@contextmanager
def sending(bootstrap: str) -> Iterator[None]:
    """Messages to every queue of the gaps' topic, all the time."""
    from dledger_client import Message, Producer

    ended = threading.Event()

    def run() -> None:
        with Producer(bootstrap) as producer:
            while not ended.wait(SEND_EVERY_S):
                for queue_id in range(GAP_QUEUES):
                    producer.send_oneway(Message("gaps", b"x"), queue_id=queue_id)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> None:
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", default="512-1536")
    parser.add_argument("--batch", type=int, nargs="*", default=[32, 1], help="messages a listener call at most")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--data", help="folder for the cluster's data")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="push-", dir=options.data))
    result: dict[str, object] = {"messages": options.messages, "size": options.size}
    try:
        with PrivateCluster(folder / "cluster") as cluster:
            cluster.start()
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic("full", queues=QUEUES)
                admin.create_topic("gaps", queues=GAP_QUEUES)
            fill(cluster.bootstrap, "full", options.messages, options.size)
            for batch in options.batch:
                for members in (1, 4):
                    rate = throughput(cluster.bootstrap, members, batch, options.messages, folder)
                    result[f"{members} consumers, {batch} a call, msg/s"] = round(rate)
                    print(result, file=sys.stderr, flush=True)
            if options.rounds:
                with sending(cluster.bootstrap):
                    for kind in ("concurrent", "orderly"):
                        result[kind] = measure_gaps(cluster.bootstrap, kind, options.rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        {"count": count, "note": note}[sys.argv[2]](*sys.argv[3:])
    else:
        main()
