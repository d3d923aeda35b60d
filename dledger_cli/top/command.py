"""``dledger top``: replica groups, nodes, consumer groups and changes of leader, live."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.connection import as_member
from dledger_cli.context import CONTACT_S, ConfigOption, check_reachable, load_readable, nodes_of, run
from dledger_cli.output import print_json, print_line, use_json

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.top.model import View
    from dledger_cli.top.screen import Choice
    from dledger_cli.top.text import Order
    from dledger_cli.top.watcher import Watcher

ORDERS = ("name", "rate", "lag", "disk")
PLAIN_WIDTH = 240  # where there is no terminal nothing is cut


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    config: ConfigOption = None,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Time between two updates.")] = 1.0,
    sort: Annotated[str, typer.Option("--sort", metavar="BY", help=f"What comes first: {', '.join(ORDERS)}.")] = "name",
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after two samples for the rates; the default without a terminal.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a line of JSON at each update; with --once only one.", callback=use_json),
    ] = False,
) -> None:
    """Show a running cluster live.  Lists replica groups, nodes, consumer groups and leader changes.

    IN counts stored messages, OUT messages that were read.  LAG of a node: committed entries that it does not have; of a consumer group:
    unread messages.  LOOP-LAG is the longest delay of the node's event loop in the last seconds; above 200 ms the node is overloaded.
    With --once, exits with 1 if no node answers.
    """
    if sort not in ORDERS:
        raise typer.BadParameter(f"expected {', '.join(ORDERS)}", param_hint="--sort")
    from dledger_cli.top.screen import Choice

    choice = Choice(order=_order(sort))
    run(_run(load_readable(config), interval, choice, once=once, as_json=as_json))


def _order(text: str) -> Order:
    from dledger_cli.top import text as texts

    return next(order for order in texts.ORDERS if order == text)


async def _run(cluster: ClusterConfig, interval_s: float, choice: Choice, *, once: bool, as_json: bool) -> None:
    from dledger_cli.top.watcher import SLOWER_S, Watcher
    from dledger_client.aio import Admin

    once = once or not (as_json or sys.stdout.isatty())
    with as_member(cluster):
        if once:
            await check_reachable(cluster.bootstrap(), CONTACT_S)
        admin = Admin(cluster.bootstrap())
    consumers_every_s = interval_s if once else SLOWER_S
    async with admin, Watcher(admin, cluster.cluster, nodes_of(cluster), consumers_every_s) as watcher:
        if once:
            await watcher.look()
            await asyncio.gather(watcher.consumers_asked(2), asyncio.sleep(interval_s))
            _print(await watcher.look(), choice, as_json=as_json)
        elif as_json:
            while True:
                _print(await watcher.look(), choice, as_json=True)
                await asyncio.sleep(interval_s)
        else:
            await _live(watcher, interval_s, choice)


def _print(view: View, choice: Choice, *, as_json: bool) -> None:
    from dledger_cli.top.text import sections

    if as_json:
        print_json(_json(view))
        return
    for number, table in enumerate(sections(view, PLAIN_WIDTH, choice.order).values()):
        if table.rows:
            print("\n" * bool(number) + table.heading)
            for line, _state in table.rows:
                print(line)
    print()
    if view.consumers_trouble:
        print_line(f"consumer groups {view.consumers_trouble}")
    print_line(view.sentence)


def _json(view: View) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(view.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"at": moment} | asdict(view) | {"healthy": view.healthy, "takes_messages": view.takes_messages}


async def _live(watcher: Watcher, interval_s: float, choice: Choice) -> None:
    """Draw until q, Ctrl-C or SIGTERM."""
    from rich.console import Console
    from rich.live import Live

    from dledger_cli.top.keys import Keys
    from dledger_cli.top.screen import picture
    from dledger_wire.errors import DledgerError

    changed = asyncio.Event()

    def pressed(key: str) -> None:
        choice.press(key)
        changed.set()

    view, trouble = await watcher.look(), ""
    console = Console(highlight=False)
    with _signals(choice, changed), _quiet_log(), Keys(pressed), Live(console=console, screen=True, auto_refresh=False) as live:
        looked_s = asyncio.get_running_loop().time()
        while not choice.quit:
            size = shutil.get_terminal_size()
            live.update(picture(view, choice, size.columns, size.lines, trouble), refresh=True)
            changed.clear()
            left_s = None if choice.paused else max(0.0, looked_s + interval_s - asyncio.get_running_loop().time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await changed.wait()
                continue  # a key: the same view in another way
            looked_s = asyncio.get_running_loop().time()
            try:
                view, trouble = await watcher.look(), ""
            except DledgerError as error:
                trouble = error.message


@contextlib.contextmanager
def _signals(choice: Choice, changed: asyncio.Event) -> Iterator[None]:
    """SIGTERM ends as q does; a window of another size is drawn at once."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        choice.quit = True
        changed.set()

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Warnings of the clients would be written across the picture, which shows what they are about."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [logging.NullHandler()]
    try:
        yield
    finally:
        root.handlers = before
