"""``dledger bench``: figures of a cluster - produce, consume, latency, failover, overload.

Owns the options.  What a bench does is in ``runs.py``, which is imported when one is run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption
from dledger_cli.help_page import command_group

MessagesOption = Annotated[int, typer.Option("--messages", "-n", metavar="N", min=1, help="How many messages.")]
SizeOption = Annotated[str, typer.Option("--size", metavar="B", help="Size of each body, or two for sizes between them: 512-1536.")]
TopicOption = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Topic to use; created when it does not exist.")]
QueuesOption = Annotated[int, typer.Option("--queues", metavar="N", min=1, max=1024, help="Queues of the bench topic.")]


def register(app: typer.Typer) -> None:
    bench = command_group(app, "bench")
    bench.command("produce")(produce)
    bench.command("consume")(consume)
    bench.command("latency")(latency)
    bench.command("failover")(failover)
    bench.command("overload")(overload)


def produce(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    check: Annotated[bool, typer.Option("--read-back/--no-read-back", help="Read acknowledged messages back afterwards.")] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send numbered messages without waiting for each of them.  Checks every acknowledgement.

    Then reads the messages back, outside the measured time. Exits with 1 if a message was rejected, or an acknowledged one was lost or
    duplicated.
    """
    from dledger_drill.bench import runs

    runs.produce(messages, size, topic, queues, config, check=check, as_json=as_json)


def consume(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    follower: Annotated[bool, typer.Option("--follower", help="Read from followers.")] = False,
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and decode messages in one process.  Missing ones are produced before the measurement.

    Exits with 1 if a message is lost or duplicated.
    """
    from dledger_drill.bench import runs

    runs.consume(messages, size, topic, queues, config, follower=follower, as_json=as_json)


def latency(
    messages: MessagesOption = 5_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message at a time and measure its latency."""
    from dledger_drill.bench import runs

    runs.latency(messages, size, topic, config, as_json=as_json)


def failover(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Number of leader failures.")] = 20,
    fault: Annotated[str, typer.Option("--fault", metavar="F", help="kill, pause (SIGSTOP, 5 s), partition, or transfer.")] = "kill",
    size: SizeOption = "1KiB",
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=1, help="Messages a second during the rounds.")] = 2000,
    as_json: JsonOption = False,
) -> None:
    """Fail the leader of a private cluster under load.  Repeats it.  Exits with 1 if an acknowledged message is lost or duplicated."""
    from dledger_drill.bench import runs

    runs.failover(rounds, fault, size, rate, as_json=as_json)


def overload(
    size: Annotated[str, typer.Option("--size", metavar="B", help="Size of each body.")] = "64KiB",
    connections: Annotated[int, typer.Option("--connections", metavar="N", min=1, max=500, help="Producers, each with a connection.")] = 50,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1, max=600, help="For how long each load is offered.")] = 5,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Offer 0.2 to 5 times what the cluster can store.  Shows how much it stores then, how fast, and what it refuses.

    Exits with 1 if what is stored does not agree with what was acknowledged.
    """
    from dledger_drill.bench import runs

    runs.overload(size, connections, seconds, config, as_json=as_json)
