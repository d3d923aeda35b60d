"""Numbers in the prose of the documents against the settings and constants that they restate.

``name` (5 s)`` behind a setting's name is compared by itself.  Every other number that restates one has a row in ``STATED``: a part of the
page's text, made of the value.  When a default changes, the row no longer stands in the page and the test names it.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from broker.config.cluster_file import RaftConfig, ServiceConfig, StoreConfig
from broker.config.memory_shares import IDLE_BYTES, RECEIVED_BYTES
from broker.config.name_servers import NameServiceConfig
from broker.config.security import LimitsConfig
from broker.config.units import parse_duration_ms, parse_size
from broker.groups.term_sessions import SESSION_MS
from broker.process.service_manager import PATIENCE_S
from broker.security.certificate_watch import LEVELS_DAYS
from dledger.core.config import CoreConfig
from dledger.log.config import LogConfig
from dledger_client.cluster.channels import HEDGE_S
from dledger_client.cluster.leader_stream import PRODUCE_SILENCE
from dledger_client.cluster.route_watch import WAIT_MS, WAIT_SPREAD_MS
from dledger_client.consumer.rebalancer import DRAIN_S
from dledger_client.consumer.settings import PushOptions
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.frames.compress import SAMPLED_FROM, WORTHWHILE
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS
from dledger_wire.tcp.dead_peers import SILENT_S
from dledger_wire.tcp.network import AUTHENTICATION_S, CALLS_IDLE_S
from dledger_wire.tcp.received_bytes import IDLE_LOOKS, LOOK_S, STARVED_LOOKS
from store.commands.consumer_groups import SubscriptionGroup
from store.settings import StoreSettings
from store.state.transactions import MAX_OPEN, MAX_OPEN_OF_GROUP

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
UNIT = dict(
    re.findall(r"^(\w+)=(\d+)$", (ROOT / "cluster-configs" / "systemd" / "dledger@.service").read_text(encoding="utf-8"), re.MULTILINE)
)
RAFT, STORE, BROKER, NAMES, LIMITS = RaftConfig(), StoreConfig(), ServiceConfig(), NameServiceConfig(), LimitsConfig()
SEND, PUSH, FILES = ProducerOptions(), PushOptions(), StoreSettings()
CONFIGURED = f"{RAFT.election_timeout_ms / 1000:g} to {2 * RAFT.election_timeout_ms / 1000:g} s"
LEAST_MS = CoreConfig().least_election_timeout_ms
DELAYS = [re.sub(r"(\d+)(\w)", r"\1 \2", level) for level in BROKER.messageDelayLevel.split()]  # 1 s, ... 1 m, ... 2 h
RETRIES = SubscriptionGroup("any").retryMaxTimes
MIB, GIB = 1 << 20, 1 << 30

STATED: dict[str, list[str]] = {
    "concepts/consumers.md": [f"noticed within {SESSION_MS / 1000:g} s", f"after {RETRIES} retries"],
    "concepts/guarantees.md": [
        f"synced every {STORE.flushIntervalCommitLog} ms, or earlier when {LogConfig().flush_bytes // MIB} MiB",
    ],
    "concepts/replica-groups.md": [
        f"as configured: {CONFIGURED}",
        f"heartbeat gap longer than {LEAST_MS} ms",
        f"{LEAST_MS / 1000:g} to {2 * LEAST_MS / 1000:g} s",
        f"after {HEDGE_S:g} s of silence",
    ],
    "concepts/routing.md": [
        f"after {WAIT_MS // 1000} to {(WAIT_MS + WAIT_SPREAD_MS) // 1000} seconds. Short-lived",
        f"| {PRODUCE_SILENCE.limit_ms // 1000} s on a call |",
        f"{PRODUCE_SILENCE.ask_ms / 1000:g} to 0.2 s",
    ],
    "concepts/storage.md": [f"segments of {STORE.mappedFileSizeCommitLog // GIB} GiB"],
    "guides/deploy/index.md": [
        f"after {LEAST_MS / 1000:g} to {2 * RAFT.election_timeout_ms / 1000:g} s without the leader",
        f"{STORE.diskMaxUsedSpaceRatio / 100:g} is `diskMaxUsedSpaceRatio`",
    ],
    "guides/deploy/hosts.md": [
        f"or {PATIENCE_S:g} s after it listens",
        f"an event loop that hangs for {UNIT['WatchdogSec']} s",
        f"starts it again after {UNIT['RestartSec']} s",
    ],
    "guides/applications/consume.md": [f"its queues pause for {SESSION_MS / 1000:g} s"],
    "guides/operate/disk.md": [
        f"| {STORE.fileReservedTime // 3_600_000} h, at {STORE.deleteWhen}:00 local time |",
        f"`diskMaxUsedSpaceRatio` | {STORE.diskMaxUsedSpaceRatio} % |",
        f"| {STORE.diskSpaceCleanForciblyRatio} %, {STORE.cleanFileForciblyAfter // 60_000} min |",
        f"`diskSpaceWarningLevelRatio` | {STORE.diskSpaceWarningLevelRatio} % |",
        f"the ratios of {STORE.diskSpaceCleanForciblyRatio} and {STORE.diskSpaceWarningLevelRatio} do not apply",
    ],
    "guides/applications/delay.md": [
        ", ".join(DELAYS[:4]) + f", {DELAYS[4][:-2]} to {DELAYS[13]}in, {DELAYS[14]}in, {DELAYS[15]}in, {DELAYS[16]}, {DELAYS[17]}",
        f"at most {MAX_TIMER_DELAY_MS // 86_400_000} days ahead",
    ],
    "guides/operate/monitor.md": [f"more than {STORE.diskMaxUsedSpaceRatio} % (info)"],
    "guides/applications/order.md": [f"a killed consumer is free after {SESSION_MS / 1000:g} s"],
    "guides/applications/produce.md": [
        f"a body over {SEND.compress_over_bytes} bytes",
        f"at least {1 - WORTHWHILE:.0%} smaller".replace("%", " %"),
        f"Bodies of {SAMPLED_FROM >> 10} KiB or more are sampled",
    ],
    "guides/applications/retry.md": [
        f"{DELAYS[2]} after the first attempt, then longer, up to {DELAYS[-1]}",
        f"After {RETRIES} retries, when it has failed {RETRIES + 1} times",
    ],
    "guides/applications/transactions.md": [
        f"`transactionTimeOut` | {BROKER.transactionTimeOut // 1000} s |",
        f"`transactionCheckInterval` | {BROKER.transactionCheckInterval // 1000} s |",
        f"`transactionCheckMax` | {BROKER.transactionCheckMax} |",
        f"At most {MAX_OPEN:,}".replace(",", " ") + " transactions",
        f"about {MAX_OPEN_OF_GROUP:,}".replace(",", " ") + " of one producer group",
    ],
    "guides/operate/secure-a-running-cluster.md": [f"expire within {LEVELS_DAYS[0]} days"],
    "guides/operate/troubleshoot.md": [f"stops serving within {CONFIGURED}"],
    "reference/client-settings.md": [f"compressType [{SEND.compress_type}], compressLevel [{SEND.compress_level}]"],
    "reference/network.md": [
        f"after {CALLS_IDLE_S:g} s without use",
        f"does not identify itself within {AUTHENTICATION_S:g} s",
        f"dialling side after about {SILENT_S} s",
        f"| received and not processed | 3/8 | {RECEIVED_BYTES // MIB} MiB |",
        f"beside an idle node ({IDLE_BYTES // MIB} MiB)",
        f"or 64 KiB, within {IDLE_LOOKS * LOOK_S:g} s",
        f"nothing was processed for {STARVED_LOOKS * LOOK_S:g} s",
    ],
    "../README.md": [f"can lose the last {STORE.flushIntervalCommitLog / 1000:g} s"],
    "reference/semantics/groups.md": [f"expires after {SESSION_MS / 1000:g} s", f"at most {DRAIN_S:g} s, and commits"],
    "reference/semantics/send.md": [
        f"Sequences of a producer: {FILES.producer_expiry_ms // 86_400_000} days",
        f"keeps {FILES.max_producers:,}".replace(",", " ") + " producers with",
    ],
}


def _settings() -> dict[str, object]:
    found: dict[str, object] = {}
    for model in (RAFT, STORE, BROKER, NAMES, LIMITS):
        found |= vars(model)
    for options in (ProducerOptions, PushOptions):
        found |= {field.name: field.default for field in fields(options)}
    return found


SETTINGS = _settings()
BESIDE = re.compile(r"`(?:[\w.]+\.)?(\w+)` \((\d[\d ]*?)(?: ?(ms|s|min|h|KiB|MiB|GiB))?\)")
PAGES = [page for page in sorted(DOCS.glob("**/*.md")) if "adr" not in page.parts]


def text_of(page: Path) -> str:
    return re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", STATED)
def test_a_page_states_the_values_that_are_in_force(name: str) -> None:
    text = text_of(DOCS / name)
    assert not [part for part in STATED[name] if part not in text]


def test_a_number_behind_the_name_of_a_setting_is_its_default() -> None:
    checked, wrong = 0, []
    for page in PAGES:
        for name, number, unit in BESIDE.findall(text_of(page)):
            if name in SETTINGS:
                checked += 1
                written = number.replace(" ", "") + unit.replace("min", "m")
                value = parse_size(written) if unit.endswith("B") else parse_duration_ms(written)
                if value != SETTINGS[name]:
                    wrong.append(f"{page.relative_to(DOCS)}: {name} ({number} {unit}), the default is {SETTINGS[name]}")
    assert not wrong
    assert checked > 8
