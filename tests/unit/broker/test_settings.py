"""Settings: each stands once, has one default, and is read by something."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import COMMIT_NOTICE_DELAY_MS, raft_settings_of, store_settings_of
from broker.config.model import ConfigModel
from dledger.core.config import CoreConfig
from dledger.log.config import LogConfig
from store.settings import StoreSettings
from tests.sim.clock import SimClock
from tests.unit.client.sim_rig import Rig

ROOT = Path(__file__).resolve().parents[3]
CHECKS = {"broker/config/rules.py", "broker/config/values.py", "broker/config/model.py"}
DEFAULTS = "cluster: c\ngroups: [{name: g0, nodes: [{id: n0, address: 127.0.0.1:10911}]}]\n"


def names_read() -> set[str]:
    """Every attribute that a function of the server or the command line reads; checks of the cluster file do not count."""
    files = {path for package in ("broker", "store", "dledger", "dledger_cli") for path in (ROOT / package).rglob("*.py")}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files if str(path.relative_to(ROOT)) not in CHECKS]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    nodes = [node for function in functions for node in ast.walk(function)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def models_named(annotation: object) -> set[type[ConfigModel]]:
    """The models in a field's type, also inside a list, a union or ``Annotated``."""
    found = {annotation} if isinstance(annotation, type) and issubclass(annotation, ConfigModel) else set()
    return found.union(*(models_named(part) for part in get_args(annotation)))


def models_of(model: type[ConfigModel]) -> set[type[ConfigModel]]:
    """The model and those of its blocks, at any depth."""
    blocks = set().union(*(models_named(hint) for hint in get_type_hints(model, include_extras=True).values()))
    return {model}.union(*(models_of(block) for block in blocks))


def test_every_setting_is_read_somewhere() -> None:
    settings = {name for model in models_of(ClusterConfig) for name in model.names()}
    assert settings - names_read() == set()


def test_every_model_of_the_configuration_is_a_block_of_the_cluster_file() -> None:
    """Otherwise the test above would not check its settings."""
    leaves = [each for each in subclasses(ConfigModel) if not each.__subclasses__()]
    declared = {each for each in leaves if each.__module__.startswith("broker.")}
    assert declared <= models_of(ClusterConfig)


def subclasses(model: type[ConfigModel]) -> set[type[ConfigModel]]:
    return set(model.__subclasses__()).union(*(subclasses(each) for each in model.__subclasses__()))


def test_the_defaults_of_the_layers_are_those_of_the_cluster_file() -> None:
    node = ClusterConfig.parse(DEFAULTS, "defaults.yaml").node("n0")
    raft = raft_settings_of(node)
    assert raft.core == CoreConfig(commit_notice_delay_ms=COMMIT_NOTICE_DELAY_MS)
    assert raft.log == LogConfig()
    assert store_settings_of(node) == StoreSettings(store_host="127.0.0.1:10911")


def test_a_setting_of_the_store_reaches_it() -> None:
    text = DEFAULTS + "store: {maxMessageSize: 1MiB, deleteWhen: 05, flushConsumeQueueLeastPages: 9}\n"
    store = store_settings_of(ClusterConfig.parse(text, "given.yaml").node("n0"))
    assert (store.maxMessageSize, store.deleteWhen, store.flushConsumeQueueLeastPages) == (1 << 20, "05", 9)


@pytest.mark.parametrize(("broker", "min_ms", "max_ms"), [("{}", 20_000, 21_000), ("{longPollingEnable: false}", 1000, 1500)])
def test_without_long_polling_a_fetch_waits_a_short_time_only(broker: str, min_ms: int, max_ms: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.consumer() as consumer:
            clock = SimClock(rig.cluster.loop)
            start_ms = clock.monotonic_ms()
            assert await consumer.fetch("t", 0, 0, wait_ms=20_000) == []
            assert min_ms <= clock.monotonic_ms() - start_ms <= max_ms

    Rig(settings=f"broker: {broker}\n").run(scenario)


def test_clients_learn_the_largest_message_from_the_cluster() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.consumer() as consumer:
            assert [queues.max_message_bytes for queues in await consumer.topic("t")] == [100_000]

    Rig(store="maxMessageSize: 100000").run(scenario)
