"""``dledger message``: wrong usage ends with 2 before any node is asked; times and texts as people read and write them."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.context import time_ms
from dledger_cli.message_text import time_text


@pytest.mark.parametrize(
    "arguments",
    [
        "query t",
        "query --key k",
        "query t --key k --id x",
        "query t --queue 0",
        "query t --offset 3",
        "query t --from noon",
        "query t --from 2026-02-01 --to 2026-01-31",
        "query t --key k --max 0",
        "query t --key k --queue 0 --offset 1",
        "trace t",
        "trace --key k",
        "trace t --key k --id x",
    ],
)
def test_wrong_usage(arguments: str) -> None:
    assert CliRunner().invoke(app, ["message", *arguments.split()]).exit_code == 2


def test_times() -> None:
    texts = ("", "1700000000017", "1970-01-01T00:00:01", "1970-01-02", "1970-01-01T01:00:00.250+01:00")
    assert [time_ms(text, "--from") for text in texts] == [
        0,
        1_700_000_000_017,
        1000,
        86_400_000,
        250,
    ]
    assert [time_text(0), time_text(1_700_000_000_007)] == ["-", "2023-11-14T22:13:20.007Z"]
    with pytest.raises(typer.BadParameter, match="expected milliseconds since 1970"):
        time_ms("yesterday", "--from")
