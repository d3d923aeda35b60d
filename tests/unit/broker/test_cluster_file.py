"""The cluster file: what is accepted, what it means, and the exact line every mistake gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import raft_settings_of
from broker.config.placement import group_warnings
from broker.config.units import format_duration_ms, format_size, parse_duration_ms, parse_size
from broker.config.values import split_address
from dledger_wire.errors import ConfigError

GOOD = """\
cluster: local
name_servers: [127.0.0.1:9876]
groups:
  - name: g0
    nodes:
      - {id: n0, address: 127.0.0.1:10911}
      - {id: n1, address: 127.0.0.1:10912}
      - {id: n2, address: 127.0.0.1:10913}
store:
  flushDiskType: SYNC_FLUSH
"""

ROOT = Path(__file__).resolve().parents[3]


def edit(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


MISTAKES = [
    ("", "bad.yaml:1: expected a cluster file with the settings cluster and groups, got nothing"),
    ("- a\n", "bad.yaml:1: expected a cluster file with the settings cluster and groups, got a list"),
    ("a: [\n", "bad.yaml:2: not valid YAML: while parsing a flow node expected the node content, but found '<stream end>'"),
    (edit("flushDiskType", "flushDiskTyp"), "bad.yaml:10: store.flushDiskTyp: unknown setting; did you mean flushDiskType?"),
    (edit("cluster: local\n", ""), "bad.yaml:1: cluster: required setting is missing"),
    (edit("name: g0\n    nodes", "nodes"), "bad.yaml:4: groups[0].name: required setting is missing"),
    (
        edit("store:", 'metrics: {address: "0.0.0.0:9464"}\nstore:'),
        "bad.yaml:9: metrics.address: expected an address for each process of a host; 0.0.0.0:9464 of node n1 is taken: "
        "node n0 on the same host serves its metrics at 0.0.0.0:9464",
    ),
    (
        edit("address: 127.0.0.1:10912", 'address: 127.0.0.1:10912, metrics: "0.0.0.0:10911"'),
        "bad.yaml:7: groups[0].nodes[1].metrics: expected an address for each process of a host; 0.0.0.0:10911 of node n1 is taken: "
        "node n0 on the same host serves another port at 127.0.0.1:10911",
    ),
    (
        edit("store:", 'metrics: {address: "127.0.0.2:9464"}\nconsole: {address: "0.0.0.0:9464"}\nstore:').replace(
            "name_servers: [127.0.0.1:9876]", "name_servers: [127.0.0.3:9876]"
        ),
        "bad.yaml:10: console.address: expected an address for each process of a host; 0.0.0.0:9464 of the console of node n0 is taken: "
        "node n0 on the same host serves its metrics at 127.0.0.2:9464",
    ),
    (
        edit("store:", "console: {address: 127.0.0.1:10912}\nstore:"),
        "bad.yaml:9: console.address: expected an address for each process of a host; 127.0.0.1:10912 of the console of node n0 is taken: "
        "node n1 on the same host serves another port at 127.0.0.1:10912",
    ),
    (
        edit("store:", "security: {users: {required: true}, cluster_secret_file: s}\nstore:").replace(
            "id: n0,", 'id: n0, metrics: "0.0.0.0:9464",'
        ),
        "bad.yaml:6: groups[0].nodes[0].metrics: users log in here: outside loopback it needs security.tls, or metrics.anonymous: true",
    ),
    (edit("SYNC_FLUSH", "SYNC"), "bad.yaml:10: store.flushDiskType: expected 'SYNC_FLUSH' or 'ASYNC_FLUSH', got 'SYNC'"),
    (
        edit("      - {id: n2, address: 127.0.0.1:10913}\n", ""),
        "bad.yaml:5: groups[0].nodes: 2 nodes; a group needs an odd number >= 1 (3 recommended); "
        "spare: true is for one that member add takes in, or has taken in",
    ),
    (
        edit("127.0.0.1:10912", "localhost:10911"),
        "bad.yaml:7: groups[0].nodes[1].address: expected an address that no other node has, got localhost:10911 again "
        "(the same as 127.0.0.1:10911)",
    ),
    (
        edit("127.0.0.1:10912", '"[::ffff:127.0.0.1]:10911"'),
        "bad.yaml:7: groups[0].nodes[1].address: expected an address that no other node has, got [::ffff:127.0.0.1]:10911 again "
        "(the same as 127.0.0.1:10911)",
    ),
    (
        GOOD + "  diskMaxUsedSpaceRatio: 95\n",
        "bad.yaml:11: store.diskMaxUsedSpaceRatio: expected less than diskSpaceWarningLevelRatio (90), got 95",
    ),
    (
        GOOD + "  diskSpaceWarningLevelRatio: 80\n",
        "bad.yaml:11: store.diskSpaceWarningLevelRatio: expected more than diskSpaceCleanForciblyRatio (85), got 80",
    ),
    (GOOD + "broker:\n  defaultTopicQueueNums: " + "9" * 5000 + "\n", "bad.yaml:12: not valid YAML: a number of too many digits"),
    (GOOD + "broker: 2026-13-45\n", "bad.yaml:11: not valid YAML: month must be in 1..12"),
    ("#" * (2 << 20), "bad.yaml: more than 1048576 characters; expected a cluster file"),
    (
        edit("id: n1", "id: n0"),
        "bad.yaml:7: groups[0].nodes[1].id: expected an id no other node has, got 'n0' again (first in replica group g0)",
    ),
    (
        edit("10912", "10911"),
        "bad.yaml:7: groups[0].nodes[1].address: expected an address that no other node has, got 127.0.0.1:10911 again",
    ),
    (edit("127.0.0.1:10912", "127.0.0.1"), "bad.yaml:7: groups[0].nodes[1].address: expected host:port, got '127.0.0.1'"),
    (
        edit("127.0.0.1:10912", "0.0.0.0:10912"),
        "bad.yaml:7: groups[0].nodes[1].address: expected an address that others can reach, got 0.0.0.0:10912; "
        "where a node listens is its setting listen",
    ),
    (
        edit("127.0.0.1:9876", "'[::]:9876'"),
        "bad.yaml:2: name_servers[0]: expected an address that others can reach, got [::]:9876; where a node listens is its setting listen",
    ),
    (edit("10912", "70000"), "bad.yaml:7: groups[0].nodes[1].address: expected a port from 1 to 65535, got 70000"),
    (
        edit("127.0.0.1:10912", "300.0.0.1:10912"),
        "bad.yaml:7: groups[0].nodes[1].address: expected host:port with a host name, an IPv4 address or an [IPv6] address, "
        "got '300.0.0.1:10912'",
    ),
    (
        edit("id: n1", "id: ../n1"),
        "bad.yaml:7: groups[0].nodes[1].id: expected a name of letters, digits, _ and -, at most 64 long, got '../n1'",
    ),
    (
        GOOD + "  maxMessageSize: huge\n",
        "bad.yaml:11: store.maxMessageSize: expected a size such as 1GiB, 256KiB or a number of bytes, got 'huge'",
    ),
    (GOOD + "  maxMessageSize: 600MiB\n", "bad.yaml:11: store.maxMessageSize: expected 1 to 67108864 bytes, got '600MiB'"),
    (
        GOOD + "  mappedFileSizeConsumeQueue: 1001\n",
        "bad.yaml:11: store.mappedFileSizeConsumeQueue: expected a multiple of 20, the size of a queue unit, got 1001",
    ),
    (GOOD + "  mappedFileSizeConsumeQueue: 0\n", "bad.yaml:11: store.mappedFileSizeConsumeQueue: expected 20 to 1073741824 bytes, got 0"),
    (
        GOOD + "  mappedFileSizeCommitLog: 10GiB\n",
        "bad.yaml:11: store.mappedFileSizeCommitLog: expected 65536 to 2147483648 bytes, got '10GiB'",
    ),
    (
        GOOD + "  mappedFileSizeCommitLog: -1\n",
        "bad.yaml:11: store.mappedFileSizeCommitLog: expected a size such as 1GiB, 256KiB or a number of bytes, got -1",
    ),
    (
        GOOD + "  mappedFileSizeCommitLog: 1MiB\n",
        "bad.yaml:11: store.mappedFileSizeCommitLog: expected at least twice maxMessageSize (4194304), got 1048576",
    ),
    (
        GOOD + "  mappedFileSizeCommitLog: 1MiB\n  maxMessageSize: 900KiB\n",
        "bad.yaml:12: store.maxMessageSize: expected at most half of mappedFileSizeCommitLog (1048576), got 921600",
    ),
    (GOOD + "  flushCommitLogLeastPages: -1\n", "bad.yaml:11: store.flushCommitLogLeastPages: expected 0 or more, got -1"),
    (
        GOOD + "  flushCommitLogThoroughInterval: 0\n",
        "bad.yaml:11: store.flushCommitLogThoroughInterval: expected 1 ms to 600000 ms, got 0",
    ),
    (GOOD + "  diskMaxUsedSpaceRatio: 750\n", "bad.yaml:11: store.diskMaxUsedSpaceRatio: expected 95 or less, got 750"),
    (GOOD + "  diskMaxUsedSpaceRatio: lots\n", "bad.yaml:11: store.diskMaxUsedSpaceRatio: expected a whole number, got 'lots'"),
    (GOOD + "  deleteWhen: '25'\n", 'bad.yaml:11: store.deleteWhen: expected hours of the day such as "04" or "04;16", got \'25\''),
    (GOOD + "broker: {autoCreateTopicEnable: yep}\n", "bad.yaml:11: broker.autoCreateTopicEnable: expected true or false, got 'yep'"),
    (GOOD + "broker: 7\n", "bad.yaml:11: broker: expected a mapping of settings, got 7"),
    (GOOD + "cluster: again\n", "bad.yaml:1: cluster: given twice, on lines 1 and 11"),
    (
        GOOD + "security: {tls: {}}\n",
        "bad.yaml:11: security.tls.ca: required setting is missing",
    ),
    (edit("groups:\n", "groups: []\nx:\n"), "bad.yaml:3: groups: expected at least 1, got 0"),
    (
        edit("[127.0.0.1:9876]", "[a:1, a:2, a:3, a:4]"),
        "bad.yaml:2: name_servers: expected at most 3 addresses (one for each node of the first group), got 4",
    ),
    (
        GOOD + "spares: [{id: n1, address: 127.0.0.1:9}]\n",
        "bad.yaml:11: spares[0].id: expected an id no other node has, got 'n1' again (first in replica group g0)",
    ),
    (
        GOOD + "spares: [{id: sp0, address: 127.0.0.1:10912}]\n",
        "bad.yaml:11: spares[0].address: expected an address that no other node has, got 127.0.0.1:10912 again",
    ),
    (edit("- name: g0", "- name: g0\n    voters: 4"), "bad.yaml:5: groups[0].voters: expected an odd number (3 recommended), got 4"),
    (
        edit("- name: g0", "- name: g0\n    learners: 7"),
        "bad.yaml:5: groups[0].learners: expected at most 9 replicas together with 3 voters, got 7",
    ),
    (
        GOOD + "replicas: {replaceAfter: 5}\n",
        "bad.yaml:11: replicas.replaceAfter: expected 1000 ms to 31536000000 ms, got 5",
    ),
    (
        edit("10911}", "10911, host: 'a b'}"),
        "bad.yaml:6: groups[0].nodes[0].host: expected a label of letters, digits, ., _ and -, at most 128 long, got 'a b'",
    ),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_each_mistake_names_file_line_setting_and_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.parse(text, "bad.yaml")
    assert expected in str(caught.value).splitlines()


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = edit("SYNC_FLUSH", "NO").replace("10912", "x")
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.parse(text, "f")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["7", "10"]


def test_defaults_and_units() -> None:
    config = ClusterConfig.parse(GOOD + "  fileReservedTime: 3d\n  mappedFileSizeCommitLog: 64 MiB\n  deleteWhen: 04\n", "f")
    assert config.store.fileReservedTime == 3 * 86_400_000
    assert config.store.mappedFileSizeCommitLog == 64 << 20
    assert config.store.deleteWhen == "04"
    assert config.raft.election_timeout_ms == 600
    bare = ClusterConfig.parse(GOOD + "  fileReservedTime: 72\n  flushIntervalCommitLog: 20\n", "f")
    assert bare.store.fileReservedTime == 72 * 3_600_000
    assert bare.store.flushIntervalCommitLog == 20


def test_the_shipped_file_is_valid_and_gives_every_node_its_name_server_address() -> None:
    config = ClusterConfig.load(str(ROOT / "cluster-configs" / "local-3.yaml"))
    assert config.node("n0").addresses == ("127.0.0.1:10911", "127.0.0.1:9876")
    assert config.node("n2").addresses == ("127.0.0.1:10913", "127.0.0.1:9878")
    assert config.node("n1").peers == {"n0": "127.0.0.1:10911", "n1": "127.0.0.1:10912", "n2": "127.0.0.1:10913"}


def test_a_node_listens_where_it_says_and_is_reached_at_its_address() -> None:
    own = "{id: n0, address: a.example:10911, listen: '0.0.0.0:20911', replica_address: 10.1.0.1:10920}"
    config = ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", own), "good.yaml")
    assert config.node("n0").addresses == ("0.0.0.0:20911", "0.0.0.0:10920", "0.0.0.0:9876")
    assert config.node("n1").peers["n0"] == "a.example:10911"
    assert config.node("n1").links == {"n0": "10.1.0.1:10920"}
    assert config.bootstrap().startswith("127.0.0.1:9876,a.example:10911,")
    ipv6 = ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", "{id: n0, address: 'h:1', listen: '[::]:1'}"), "good.yaml")
    assert ipv6.node("n0").addresses == ("[::]:1", "[::]:9876")


def test_a_port_for_replicas_may_be_published_as_another() -> None:
    own = "{id: n0, address: 'h:30911', listen: '0.0.0.0:10911', replica_address: 'r:30912', replica_listen: '10.1.0.1:10912'}"
    config = ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", own), "good.yaml")
    assert config.node("n0").addresses == ("0.0.0.0:10911", "0.0.0.0:9876", "10.1.0.1:10912")
    assert config.node("n1").links == {"n0": "r:30912"}
    alone = "{id: n0, address: 'h:30911', replica_listen: '10.1.0.1:10912'}"
    with pytest.raises(ConfigError, match=r"groups\[0\].nodes\[0\].replica_listen: expected replica_address, too"):
        ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", alone), "bad.yaml")


def test_the_guide_to_containers_and_nat_shows_a_valid_file() -> None:
    text = (ROOT / "docs" / "reference" / "network.md").read_text(encoding="utf-8").partition("## Containers and NAT\n")[2]
    shown = text.partition("```yaml\n")[2].partition("```")[0]
    config = ClusterConfig.parse(f"cluster: shown\n{shown}metrics: {{address: '0.0.0.0:9464'}}\n", "shown.yaml")
    assert config.name_server("ns0").addresses == ("0.0.0.0:9876", "0.0.0.0:19876")
    assert {config.node(name).addresses for name in ("n0", "n1", "n2")} == {("0.0.0.0:10911",)}


def test_an_advertised_address_is_told_and_the_address_listened_on() -> None:
    own = "{id: n0, address: '0.0.0.0:20911', advertised_address: a.example:10911}"
    config = ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", own), "good.yaml")
    assert config.node("n0").addresses == ("0.0.0.0:20911", "0.0.0.0:9876")
    assert config.node("n1").peers["n0"] == "a.example:10911"
    both = "{id: n0, address: 'h:1', listen: 'h:2', advertised_address: 'h:3'}"
    with pytest.raises(ConfigError, match="listen and advertised_address are mutually exclusive"):
        ClusterConfig.parse(edit("{id: n0, address: 127.0.0.1:10911}", both), "bad.yaml")


def test_where_each_process_listens_with_its_port_of_metrics() -> None:
    text = """\
cluster: local
name_servers: [{id: ns0, address: "127.0.0.1:9876", quorum_address: "127.0.0.1:19876", metrics: "127.0.0.1:9466"}]
groups: [{name: g0, nodes: [{id: n0, address: "127.0.0.1:10911", metrics: "127.0.0.1:9465"}]}]
spares: [{id: s0, address: "10.0.0.9:10911"}]
metrics: {address: "10.0.0.1:9464"}
"""
    config = ClusterConfig.parse(text, "good.yaml")
    assert config.addresses_of("n0") == ("127.0.0.1:10911", "127.0.0.1:9465")
    assert config.addresses_of("ns0") == ("127.0.0.1:9876", "127.0.0.1:19876", "127.0.0.1:9466")
    assert config.addresses_of("s0") == ("10.0.0.9:10911", "10.0.0.1:9464")
    also = "rocketmq: {address: '0.0.0.0:10921', nameserver_address: '0.0.0.0:9877'}\n"
    config = ClusterConfig.parse(text + also, "good.yaml")
    assert config.addresses_of("n0") == ("127.0.0.1:10911", "0.0.0.0:10921", "127.0.0.1:9465")
    assert config.addresses_of("ns0") == ("127.0.0.1:9876", "127.0.0.1:19876", "0.0.0.0:9877", "127.0.0.1:9466")


def test_a_node_that_is_not_in_the_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no node 'n9' in this cluster file; it has n0, n1, n2"):
        ClusterConfig.parse(GOOD, "f").node("n9")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot read the cluster file: No such file or directory"):
        ClusterConfig.load(str(tmp_path / "gone.yaml"))


def test_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("node-1.example.org:10911") == ("node-1.example.org", 10911)
    for wrong in ("::1:80", "[127.0.0.1]:80", "a b:80", ":80", "host:", "host:0", "-a:1"):
        with pytest.raises(ValueError, match="expected"):
            split_address(wrong)


def test_sizes_and_durations() -> None:
    assert [parse_size(text) for text in ("1GiB", "1.5 KiB", 7, "2MB", "9B")] == [1 << 30, 1536, 7, 2_000_000, 9]
    assert [parse_duration_ms(text) for text in ("250ms", "1.5s", 9, "2h")] == [250, 1500, 9, 7_200_000]
    assert parse_duration_ms(2, "h") == 7_200_000
    wrong: object
    for wrong in ("", "1XB", "-1", -1, None, True, [], "1.0001KiB"):
        with pytest.raises(ValueError, match="expected"):
            parse_size(wrong)
    for wrong in ("", "1 fortnight", "-1", -5, None, True):
        with pytest.raises(ValueError, match="expected"):
            parse_duration_ms(wrong)
    assert [format_size(n) for n in (10, 1536, 5 << 20, 3 << 40)] == ["10 B", "1.5 KiB", "5.0 MiB", "3.0 TiB"]
    assert [format_duration_ms(n) for n in (12, 31_000, 600_000, 8_000_000, 200_000_000)] == ["12 ms", "31 s", "10 min", "2.2 h", "2.3 d"]


@pytest.mark.parametrize(
    "text", ["a: &x [*x]", "a: 2020-13-45", "[" * 3000, "? [1]\n: 2", "a: !!python/object:os.system x", "\x00", "1: 2"]
)
def test_strange_yaml_is_a_config_error_too(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:\d+: "):
        ClusterConfig.parse(text, "f")


def test_a_spare_node_is_in_the_file_and_not_among_the_first_voters() -> None:
    text = GOOD.replace("store:", "      - {id: n3, address: 127.0.0.1:10914, spare: true}\nstore:")
    config = ClusterConfig.parse(text, "four.yaml")
    settings = raft_settings_of(config.node("n3"))
    assert [str(node) for node in settings.membership.voters] == ["n0", "n1", "n2"]
    assert "n3" in settings.peers


LABELS = GOOD.replace("10911}", "10911, host: h0, rack: r0}").replace("10912}", "10912, host: h1, rack: r1}")


def test_labels_wishes_and_spare_nodes() -> None:
    text = LABELS.replace("- name: g0", "- name: g0\n    voters: 5\n    learners: 1\n    replaceAfter: 90s")
    text += "replicas: {replaceAfter: 10m}\nspares:\n  - {id: sp0, address: 127.0.0.1:10920, host: h9, rack: r9}\n"
    config = ClusterConfig.parse(text, "f")
    (group,) = config.groups
    assert (group.wanted_voters, group.learners, config.replace_after_ms(group)) == (5, 1, 90_000)
    assert [node.host_label for node in group.nodes] == ["h0", "h1", "127.0.0.1"]
    assert [(spare.id, spare.host, spare.rack) for spare in config.spares] == [("sp0", "h9", "r9")]
    plain = ClusterConfig.parse(GOOD + "replicas: {replaceAfter: 10m}\n", "f")
    assert (plain.groups[0].wanted_voters, plain.replace_after_ms(plain.groups[0])) == (3, 600_000)
    off = ClusterConfig.parse(GOOD.replace("- name: g0", "- name: g0\n    replaceAfter: off") + "replicas: {replaceAfter: 10m}\n", "f")
    assert off.replace_after_ms(off.groups[0]) == 0


def test_members_that_would_fail_together_are_named() -> None:
    apart = ClusterConfig.parse(LABELS, "f")
    assert group_warnings(apart.groups[0]) == []
    together = ClusterConfig.parse(LABELS.replace("host: h1, rack: r1", "host: h0, rack: r0"), "f")
    assert group_warnings(together.groups[0]) == ["replica group g0: n0, n1 are on host h0", "replica group g0: n0, n1 are in rack r0"]
    by_address = ClusterConfig.parse(GOOD.replace("127.0.0.1:1091", "db0.example:1091"), "f")
    assert group_warnings(by_address.groups[0]) == ["replica group g0: n0, n1, n2 are on host db0.example"]
    assert group_warnings(ClusterConfig.parse(GOOD, "f").groups[0]) == []


def test_a_spare_node_does_not_count_as_a_place() -> None:
    text = LABELS.replace("store:", "      - {id: n3, address: 127.0.0.1:10914, host: h0, spare: true}\nstore:")
    assert group_warnings(ClusterConfig.parse(text, "f").groups[0]) == []
