"""Messages received and acknowledged by RocketMQ's Java and Python clients over gRPC: on dledger, and on RocketMQ's proxy.

    python -m benchmarks.rocketmq.leases [--messages 20000] [--rounds 2]

By turns, on a new system each: a topic of 4 queues is filled, then one consumer with 4 threads receives 32 messages of 1 KiB at a time and
acknowledges each.  Measured from a quarter of the messages to nine tenths: a lost answer keeps its messages back for the invisible time.
dledger has three nodes, and syncs to two of three disks; RocketMQ is one broker with the proxy in its process, which syncs nothing.  On
dledger its own client consumes the same messages, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.peers.fetched import environment, jars, java
from benchmarks.peers.servers import Processes
from benchmarks.rocketmq.servers import HEAP, VERSION, Dledger, admin, broker_settings, compiled, create_topic
from dledger_cli.local.ports import free_ports
from dledger_client import aio

CLIENT, PYTHON_CLIENT = "5.2.0", "5.1.2"
FOLDER = Path(__file__).parent
TOPIC, QUEUES, THREADS, BATCH, LIMIT_S = "leased", "4", "4", 32, 400.0


def proxy_jars() -> list[Path]:
    artifacts = [f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("proxy", "broker", "namesrv", "controller", "tools")]
    return jars(f"rocketmq-proxy-{VERSION}", *artifacts)


def client_jars() -> list[Path]:
    return jars(f"rocketmq-client-java-{CLIENT}", f"org.apache.rocketmq:rocketmq-client-java:{CLIENT}", "org.slf4j:slf4j-nop:1.7.36")


@contextmanager
def dledger(folder: Path) -> Iterator[tuple[str, str]]:
    """Where gRPC clients and dledger's own find it."""
    system = Dledger(folder)
    try:
        system.start()
        create_topic(system.name_servers, system.name_servers.split(";")[0], TOPIC, QUEUES)
        yield system.name_servers, ",".join(system.own.values())
    finally:
        system.end()


@contextmanager
def proxy(folder: Path) -> Iterator[tuple[str, str]]:
    """A name server, and a broker in the process of the proxy."""
    names, grpc, remoting, broker = free_ports(4)
    files = {
        "names": f"listenPort={names}\n",
        "broker": "".join(f"{key}={value}\n" for key, value in broker_settings(folder / "broker", f"127.0.0.1:{names}", broker).items()),
        "proxy": json.dumps({"rocketMQClusterName": "measured", "grpcServerPort": grpc, "remotingListenPort": remoting}),
    }
    for name, text in files.items():
        (folder / name).mkdir(parents=True)
        (folder / f"{name}.conf").write_text(text, encoding="utf-8")
    path = ":".join(map(str, proxy_jars()))
    files_of_proxy = ["-bc", str(folder / "broker.conf"), "-pc", str(folder / "proxy.conf")]
    starts = {
        "names": ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "names.conf")],
        "proxy": ["org.apache.rocketmq.proxy.ProxyStartup", "-pm", "LOCAL", "-n", f"127.0.0.1:{names}", *files_of_proxy],
    }
    commands = {
        name: [str(java()[0]), f"-Duser.home={folder / name}", f"-Drocketmq.home.dir={folder / name}", *HEAP, "-cp", path, *start]
        for name, start in starts.items()
    }
    with Processes(commands, {"names": f"127.0.0.1:{names}", "proxy": f"127.0.0.1:{grpc}"}, folder, {}):
        create_topic(f"127.0.0.1:{names}", f"127.0.0.1:{broker}", TOPIC, QUEUES)
        for group in ("java", "python"):  # its proxy knows no group that no settings were made for
            admin(["updateSubGroup", "-n", f"127.0.0.1:{names}", "-b", f"127.0.0.1:{broker}", "-g", group])
        yield f"127.0.0.1:{grpc}", ""


SYSTEMS = {"RocketMQ's proxy": proxy, "dledger": dledger}


def measured(name: str, command: list[str], messages: int) -> dict[str, float]:
    """Messages a second by client."""
    python = str(environment("rocketmq-python", f"rocketmq-python-client=={PYTHON_CLIENT}"))
    folder = Path(tempfile.mkdtemp(prefix="dledger-bench-"))
    try:
        with SYSTEMS[name](folder) as (endpoints, own):
            given = [endpoints, TOPIC, str(messages)]
            last_line([*command, "fill", *given])
            found = {"Java": last_line([*command, "consume", *given, "java", THREADS])}
            found["Python"] = last_line([python, str(FOLDER / "lease_client.py"), *given, "python", THREADS])
            return found | ({"native": asyncio.run(native(own, messages))} if own else {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def last_line(command: list[str]) -> float:
    """The number of the last line that a client printed; its failures go to the terminal."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = done.stdout.strip().splitlines()
    sys.stderr.writelines(f"{line[:200]}\n" for line in lines if line.startswith("failed"))
    if done.returncode or not lines or not lines[-1].startswith(("rate ", "filled ")):
        raise RuntimeError(f"the client failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return float(lines[-1].split()[1])


async def native(bootstrap: str, messages: int) -> float:
    times: list[float] = []
    first, last = messages // 4, messages * 9 // 10
    async with aio.SimpleConsumer(bootstrap, group="native", topics=[TOPIC], max_messages=BATCH, invisible_ms=60_000) as consumer:

        async def work() -> None:
            while len(times) < last:
                received = await consumer.receive(wait_ms=1_000)
                if received:
                    await consumer.ack(received)
                times.extend([time.monotonic()] * len(received))

        await asyncio.gather(*(work() for _ in range(int(THREADS))))
    return (last - first) / (times[last - 1] - times[first - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps(machine()), flush=True)
    rates: defaultdict[str, list[int]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as classes:
        command = compiled(FOLDER / "Leases.java", client_jars(), Path(classes))
        for _ in range(options.rounds):
            for name in SYSTEMS:
                for client, rate in measured(name, command, options.messages).items():
                    rates[f"{client} client, {name}, msg/s"].append(round(rate))
                print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main()
