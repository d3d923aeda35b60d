"""The examples that the help texts end with are run as they are written; the list here and the help may not differ."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dledger_cli.help_page import examples
from tests.cluster.harness import Cluster, dledger

COMMANDS = (
    *(
        "up",
        "down",
        "node",
        "status",
        "top",
        "produce",
        "consume",
        "leader transfer",
        "leader history",
        "connections",
        "log tail",
        "expire",
        "verify",
        "dump",
        "backup",
        "restore",
    ),
    *(f"topic {verb}" for verb in ("create", "update", "list", "describe", "locate", "delete")),
    *(
        "dlq list",
        "dlq open",
        "dlq redrive",
        "transaction list",
        "transaction commit",
        "transaction rollback",
        "group describe",
        "group reset-offset",
        "group delete",
        "group settings",
        "group update",
    ),
    *("nameserver", "nameserver status"),
    *(f"cluster {verb}" for verb in ("status", "add-group", "apply", "drain", "remove-group", "upgrade-check", "upgrade-finish")),
    *(f"member {verb}" for verb in ("add", "promote", "remove", "replace")),
    *(f"bench {verb}" for verb in ("produce", "consume", "latency", "failover", "overload")),
)
RUN = (
    "dledger status",
    "dledger status --json",
    "dledger cluster status",
    "dledger cluster status --json",
    "dledger nameserver status",
    "dledger nameserver status --json",
    "dledger status --watch 1 --until healthy --timeout 60",
    "dledger status --check quorum-critical=n1",
    "dledger top --once --json",
    "dledger topic create orders --queues 4",
    "dledger topic create alarms --queues 3 --priorities",
    "dledger topic list",
    "dledger topic list --all --json",
    "dledger topic describe orders",
    "dledger topic locate orders customer-7",
    "dledger produce orders --file orders.txt --tag created",
    "dledger consume orders --group audit --from first --max 10",
    "dledger consume orders --from -5 --idle-exit 1 --format '%q %o %b\\n'",
    "dledger group describe audit",
    "dledger group reset-offset audit --topic orders --to first --dry-run",
    "dledger group reset-offset audit --topic orders --to 2026-01-31T12:00",
    "dledger group update audit --retry-max-times 5",
    "dledger group settings audit",
    "dledger dlq list --json",
    "dledger transaction list --json",
    "dledger leader transfer --replica-group g0 --to n1",
    "dledger leader transfer --to best",
    "dledger leader history",
    "dledger leader history --replica-group g0 -n 5 --json",
    "dledger connections",
    "dledger connections --node n1 --json",
    "dledger log tail --node n1 -n 50",
    "dledger expire --older-than 24h --yes",
    "dledger expire --id n1 --yes --json",
    "dledger verify --online",
    "dledger cluster upgrade-check",
    "dledger cluster upgrade-check --json",
    "dledger cluster upgrade-finish --yes --wait 600",
    "dledger dump data/n0/commitlog/00000000000000000000 --messages",
    "dledger bench latency --messages 1000",
    "dledger group delete audit --yes",
    "dledger topic update orders --perm 4",
    "dledger topic delete orders --yes",
)
RUN_STOPPED = (
    "dledger verify --data data",
    "dledger verify --data data/n0",
    "dledger up",
    "dledger down --id n2",
    "dledger down --data data",
)
# Too long, for ever, about files or nodes that a small test does not have; other tests run the same commands with other values.
NOT_RUN = (
    "dledger up --config cluster-configs/local-3.yaml --data /tmp/d",
    "dledger node --config cluster.yaml --id n0 --data /var/lib/dledger",
    "dledger nameserver --config cluster.yaml --id ns0 --data /var/lib/dledger",
    "dledger status --check lag=10000,disk=85",  # the disk of the machine that runs the tests may be fuller
    "dledger group describe audit --watch 1",
    "dledger group reset-offset audit --topic orders --queue 2 --offset 1001",
    "dledger log tail --node n1 --level warning --follow",
    "dledger top",
    "dledger top --sort lag",
    "tail -f log | dledger produce logs",
    "tail -f orders.jsonl | dledger produce orders --json-lines",
    "dledger consume logs --follower",
    "dledger dump FILE --from-pos 4096",
    "dledger member add --id n3 --address 127.0.0.1:10914",
    "dledger member promote --id n3",
    "dledger member promote --id n3 --wait 600",
    "dledger dlq list audit --wait 60",
    "dledger transaction commit 7F00000104D2F0A1B2C3000000000000 --yes",
    "dledger transaction rollback 7F00000104D2F0A1B2C3000000000000 --yes",
    "dledger topic create orders --queues 12 --replica-groups g0,g1",
    "dledger topic update orders --replica-groups g0,g1,g2",
    "dledger cluster add-group g1.yaml",
    "dledger cluster apply cluster.yaml --dry-run",
    "dledger cluster apply cluster.yaml",
    "dledger cluster drain g1",
    "dledger cluster drain g1 --undo",
    "dledger cluster remove-group g1 --yes",
    "dledger member remove --id n2 --yes",
    "dledger member replace --id n3 --address 127.0.0.1:10914 --replaces n2 --yes",
    "dledger dlq open audit",
    "dledger dlq open audit --close",
    "dledger dlq redrive audit --rate 100",
    "dledger dlq redrive audit --max 10 --to-group",
    "dledger bench produce --messages 1000000 --size 100",
    "dledger bench consume --follower",
    "dledger bench overload --size 4MiB --connections 200",
    "dledger bench failover --rounds 5",
    "dledger cluster upgrade-finish",  # asks
    "dledger backup --to /backup/orders",
    "dledger backup --to s3://bucket/orders --keep 30 --rate 50MiB",
    "dledger backup --to /backup/orders --list",
    "dledger restore --from /backup/orders --config new.yaml --data data",
    "dledger restore --from s3://bucket/orders --at 2026-01-31T12:30:00 --config new.yaml --id n0 --data /var/lib/dledger",
    "dledger verify --backup /backup",
)


def test_the_help_has_these_examples_and_no_others() -> None:
    shown = [line for command in COMMANDS for line in examples()[command]]
    assert sorted(shown) == sorted((*RUN, *RUN_STOPPED, *NOT_RUN))


def test_the_examples_do_what_they_say(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "orders.txt").write_text("".join(f"order {n}\n" for n in range(20)))
    (tmp_path / "data").symlink_to(cluster.data)

    def check(example: str) -> None:
        result = dledger(*shlex.split(example)[1:], cwd=tmp_path)
        if result.returncode != 0:
            pytest.fail(f"{example}: exit {result.returncode}\n{result.stdout}{result.stderr}")

    for example in RUN:
        check(example)
    cluster.stop()
    for example in RUN_STOPPED:
        check(example)
