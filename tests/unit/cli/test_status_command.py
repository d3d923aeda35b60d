"""What ``dledger status`` says of a group: who can acknowledge, who is no member, what mends it, and what one more failure would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_cli.status_text import _group_json, _row
from dledger_client.admin.cluster_status import NodeStatus, PeerStatus, ReplicaGroupStatus, judge_group
from dledger_client.admin.status_text import RENEW, node_note, replicas_line, replicas_of, sentence, why_not_healthy

NEW_FOLDER = "store: n0 comes with data folder 35b5, but n2 knows it with b245; a voter whose folder was lost must be replaced as a member"
ONE = "quorum ok (losing one more stops writes)"


def leader(*acknowledging: str, voters: str = "n0 n1 n2", learners: str = "", state: str = "ok", **refused: str) -> NodeStatus:
    """n1 leads and has connections to these."""
    ids, learner_ids = tuple(voters.split()), tuple(learners.split())
    peers = tuple(
        PeerStatus(peer, acknowledges=peer in acknowledging, refused=refused.get(peer, "")) for peer in (*ids, *learner_ids) if peer != "n1"
    )
    return replace(
        other("n1", state, voters=voters), role="leader", leader_confirmed=True, services_term=1, term=1, learners=learner_ids, peers=peers
    )


def other(node: str, state: str = "ok", knows: str = "n1", voters: str = "n0 n1 n2", **refused: str) -> NodeStatus:
    peers = tuple(PeerStatus(peer, refused=text) for peer, text in refused.items())
    role = "follower" if knows else "pre_candidate"
    unfit = state if state.startswith("read-only") else ""
    return NodeStatus(
        "g0", node, "h:1", True, role=role, leader=knows, state=state, voters=tuple(voters.split()), peers=peers, cannot_lead=unfit
    )


def gone(node: str) -> NodeStatus:
    return NodeStatus("g0", node, "h:1", False, "connection refused")


def late(node: str) -> NodeStatus:
    return replace(gone(node), error="no answer within 2 s")


def judged(*nodes: NodeStatus) -> ReplicaGroupStatus:
    return judge_group("g0", nodes)


def says(*nodes: NodeStatus) -> str:
    return sentence([judged(*nodes)])


def note(node_id: str, *nodes: NodeStatus) -> str:
    return node_note(judged(*nodes), next(node for node in nodes if node.id == node_id))


WELL = (other("n0"), other("n2"))


def test_all_are_well() -> None:
    answers = (leader("n0", "n2"), other("n0"), other("n2"))
    assert says(*answers) == "1 group, 3 of 3 nodes up, quorum ok (writes go on when one more node fails)"
    assert judged(*answers).healthy
    assert [note(node, *answers) for node in ("n0", "n1", "n2")] == ["", "master on", ""]


def test_connections_that_are_held_up_show_with_what_holds_them() -> None:
    at_rest, held = {"running": 40, "flow": 0, "blocked": 0}, {"running": 28, "flow": 12, "blocked": 0}
    group = judged(
        replace(leader("n0", "n2"), connection_states=held, bottleneck="disk"),
        replace(other("n0"), connection_states=at_rest),
        replace(other("n2"), connection_states={"running": 1, "blocked": 3}, bottleneck="memory"),
    )
    notes = {node.id: _row(group, node, node_note(group, node))[-1] for node in group.nodes}
    assert notes == {"n0": "", "n1": "master on, connections: 12/40 flow: disk", "n2": "connections: 3/4 blocked: memory"}
    shown = {node["id"]: (node["connection_states"], node["bottleneck"]) for node in _group_json(group)["nodes"]}
    assert shown["n0"] == (at_rest, "")
    assert shown["n1"] == (held, "disk")


def test_a_follower_whose_disk_is_full_does_not_count() -> None:
    full = other("n0", "read-only: the disk is full")
    assert says(leader("n0", "n2"), full, other("n2")) == f"1 group, 3 of 3 nodes up, n0 cannot acknowledge, {ONE}"
    answers = (leader("n0"), full, gone("n2"))
    assert says(*answers) == (
        "1 group, 2 of 3 nodes up, no quorum in g0 (writes are stopped until another voter acknowledges; n0 cannot now)"
    )
    assert not judged(*answers).takes_messages


def test_a_leader_with_no_room_for_messages_is_told() -> None:
    answers = (leader("n0", "n2", state="read-only: the disk is used beyond diskSpaceWarningLevelRatio"), other("n0"), other("n2"))
    assert says(*answers).endswith("quorum ok, but n1 leads and takes no new messages (writes are stopped until its disk has room)")
    assert not judged(*answers).takes_messages


def test_a_wiped_voter_does_not_count_and_the_note_says_what_to_do() -> None:
    wiped = other("n0", knows="", n1=NEW_FOLDER, n2=NEW_FOLDER)
    answers = (leader("n2", n0=NEW_FOLDER), wiped, other("n2", n0=NEW_FOLDER))
    assert says(*answers) == f"1 group, 3 of 3 nodes up, n0 cannot acknowledge, {ONE}"
    steps = "dledger member remove --id n0 --yes, then dledger member add --id n0, then dledger member promote --id n0 --wait 600"
    assert note("n0", *answers) == f"refused by its peers: {NEW_FOLDER}: {steps}"
    assert not judged(*answers).healthy
    without_leader = (gone("n1"), wiped, other("n2", knows="", n0=NEW_FOLDER))
    assert says(*without_leader).endswith("no quorum in g0 (writes are stopped until another voter acknowledges; n0 cannot now)")
    assert note("n0", *without_leader).startswith("refused by its peers: store: n0")
    assert note("n2", *without_leader) == "knows no leader"


def test_a_member_that_the_file_lacks_counts() -> None:
    answers = [leader("n0", "n2", "n3", "n4", voters="n0 n1 n2 n3 n4"), other("n0"), other("n2")]
    answers += [replace(node, configured=False) for node in (other("n3"), gone("n4"))]
    assert says(*answers) == "1 group, 4 of 5 nodes up, quorum ok (writes go on when one more node fails)", "n4 cannot be reached"
    assert note("n3", *answers) == "not in the cluster file"
    assert node_note(judged(*answers), answers[3], spares=["n3"]) == "a spare node of the cluster file"


def test_a_removed_member_that_still_runs_is_told_how_to_come_back() -> None:
    answers = (leader("n0", voters="n0 n1"), other("n0"), other("n2", knows=""))
    assert note("n2", *answers) == "not a member: dledger member add --id n2"
    assert node_note(judged(*answers), answers[2], several_groups=True) == "not a member: dledger member add --id n2 --replica-group g0"
    assert judged(*answers).healthy
    assert says(*answers) == f"1 group, 2 of 2 nodes up (1 more is no member), {ONE}"


def test_a_member_whose_place_was_taken_is_not_told_to_come_back() -> None:
    members = [leader("n0", "sp0", voters="n0 n1 sp0"), other("n0"), replace(other("sp0"), configured=False)]
    for old, todo in (
        (replace(other("n2", knows=""), last_index=7), ": stop it"),
        (gone("n2"), ""),
    ):
        assert note("n2", *members, old).endswith(f"not a member, sp0 took its place{todo}")
    assert note("n3", *members, other("n3", knows="")) == "not a member: dledger member add --id n3", "a new one has no log"


def test_damage_shows_and_is_not_healthy() -> None:
    damaged = other("n0", "damaged: 0000: byte 64: entry 3 bad body; no replica has the bytes so far")
    answers = (leader("n0", "n2"), damaged, other("n2"))
    assert note("n0", *answers).startswith("damaged: 0000: byte 64")
    assert not judged(*answers).healthy


def test_why_it_is_not_healthy_names_each_member_that_is_not_in_order() -> None:
    damaged = other("n0", "damaged: 0000: byte 64: entry 3 bad body")
    answers = (leader("n0", "n2"), damaged, gone("n2"), other("n3", knows=""))
    start = f"{says(*answers)}; g0/n0: damaged: 0000: byte 64: entry 3 bad body; g0/n2: unreachable: connection refused, start it: "
    found = why_not_healthy([judged(*answers)])
    assert found.startswith(start)
    assert "n1" not in found, "the leader is in order"
    assert "n3" not in found, "no member"
    assert why_not_healthy([judged(gone("n0"))]).count("g0/n0: unreachable") == 1, "it is not known which nodes are members"
    well = judged(leader("n0", "n2"), *WELL)
    assert why_not_healthy([well, judged(*answers)]).count("g0/n2") == 1, "a group that is healthy has no note"


def test_a_voter_that_is_not_in_sync_yet_does_not_count() -> None:
    answers = (leader("n2"), other("n0"), other("n2"))
    assert note("n0", *answers) == "does not acknowledge yet"
    assert says(*answers) == f"1 group, 3 of 3 nodes up, n0 cannot acknowledge, {ONE}"


@pytest.mark.parametrize(("up", "expected"), [(2, "quorum ok, but a leader is still being elected"), (1, "no quorum in g0")])
def test_without_a_leader_voters_that_answer_count(up: int, expected: str) -> None:
    answers = [other("n0", knows=""), other("n2", knows="") if up == 2 else gone("n2"), gone("n1")]
    assert expected in says(*answers)


def test_a_leader_that_does_not_answer_in_time_is_who_the_others_name() -> None:
    answers = (late("n1"), other("n0"), other("n2"))
    assert says(*answers) == "1 group, 2 of 3 nodes up, quorum ok, but leader n1 gave no answer within 2 s"
    assert (judged(*answers).leader, judged(*answers).leader_id) == (None, "n1")
    assert _group_json(judged(*answers))["leader"] == "n1"
    assert not judged(*answers).healthy
    assert not judged(*answers).takes_messages


@pytest.mark.parametrize(
    "answers",
    [
        (late("n1"), other("n0"), replace(other("n2", knows=""), term=2)),  # stands for election
        (late("n1"), other("n0", knows=""), other("n2", knows="")),
        (replace(other("n1"), role="leader"), other("n0"), other("n2")),  # not confirmed
    ],
)
def test_nobody_leads_who_ended_or_is_being_replaced_or_is_not_confirmed(answers: tuple[NodeStatus, ...]) -> None:
    assert says(*answers).endswith("quorum ok, but a leader is still being elected")
    assert judged(*answers).leader_id == ""


def test_followers_that_must_not_lead_are_no_spare_for_the_leader() -> None:
    warned = "read-only: the disk is used beyond diskSpaceWarningLevelRatio"
    answers = (leader("n0", "n2"), other("n0", warned), other("n2", warned))
    assert says(*answers) == "1 group, 3 of 3 nodes up, n0, n2 must not lead, quorum ok (losing n1 stops writes)"
    one = (leader("n0", "n2"), other("n0", warned), other("n2"))
    assert says(*one) == "1 group, 3 of 3 nodes up, n0 must not lead, quorum ok (writes go on when one more node fails)"
    reported = (
        replace(leader("n0", "n2"), peers=tuple(replace(peer, cannot_lead="far behind") for peer in leader("n0", "n2").peers)),
        *WELL,
    )
    assert says(*reported).endswith("n0, n2 must not lead, quorum ok (losing n1 stops writes)")
    off = replace(other("n0"), cannot_lead="clock off by +60 min")
    assert says(leader("n0", "n2"), off, other("n2")).endswith("n0 must not lead, quorum ok (writes go on when one more node fails)")


EXPIRED_HERE = "its certificate is not trusted: certificate has expired"


def test_a_node_that_nobody_can_connect_to_does_not_count() -> None:
    expired = replace(gone("n0"), error=EXPIRED_HERE)
    lead = leader("n0", "n2")
    assert says(lead, expired, other("n2")) == f"1 group, 2 of 3 nodes up, {ONE}"
    assert note("n0", lead, expired, other("n2")) == f"unreachable: {EXPIRED_HERE}, {RENEW}"
    text = "its certificate /etc/n0.crt expired on 2026-11-24 11:00 UTC: replace the file"
    known = replace(lead, peers=tuple(replace(peer, cannot_lead=text if peer.id == "n0" else "") for peer in lead.peers))
    assert note("n0", known, expired, other("n2")) == f"unreachable: {EXPIRED_HERE}, {text}"
    from_within = replace(other("n0"), cannot_lead=text)
    assert says(lead, from_within, other("n2")) == f"1 group, 3 of 3 nodes up, n0 must not lead, {ONE}"


def test_a_leader_that_only_a_follower_reaches_is_named() -> None:
    answers = (gone("n0"), replace(gone("n1"), error=EXPIRED_HERE), other("n2"))
    assert says(*answers) == (
        f"1 group, 1 of 3 nodes up, leader n1 is unreachable: {EXPIRED_HERE}, so whether messages are stored is not known here"
    )


def test_how_a_node_that_does_not_run_is_started() -> None:
    assert note("n2", leader("n0"), other("n0"), gone("n2")) == (
        "unreachable: connection refused, start it: dledger up, or on its host: dledger node --id n2"
    )


def test_nodes_that_are_no_members_are_not_counted_as_up() -> None:
    left = replace(leader(voters="n1"), peers=())
    assert says(left, other("n0"), other("n2")) == (
        "1 group, 1 of 1 node up (2 more are no members), quorum ok (losing one more stops writes)"
    )


def test_a_leader_that_cannot_be_reached_is_named_and_does_not_count() -> None:
    answers = (gone("n1"), other("n0"), other("n2"))  # its process ended, and they do not know yet; or it is not reached from here
    assert says(*answers) == "1 group, 2 of 3 nodes up, quorum ok, but leader n1 is unreachable: connection refused"
    assert judged(*answers).leader_id == ""


def test_the_newest_term_tells_who_leads() -> None:
    answers = (late("n1"), replace(other("n0", knows="n2"), term=1), late("n2"), replace(other("n3"), term=2))
    assert judged(*answers).leader_id == "n1"
    assert judged(leader("n0", "n2"), other("n0"), other("n2")).leader_id == "n1"


def test_replicas_are_in_sync_lagging_or_missing() -> None:
    answers = (leader("n0", learners="n3"), other("n0"), other("n2"), gone("n3"))
    assert replicas_of(judged(*answers)) == {"in_sync": ["n0", "n1"], "lagging": ["n2"], "missing": ["n3"]}
    assert replicas_line(judged(*answers)) == "replica group g0: in sync n0, n1; lagging n2; missing n3"
    without_leader = judged(gone("n1"), other("n0"), other("n2"))  # only a leader knows who lags
    assert replicas_line(without_leader) == "replica group g0: up n0, n2; missing n1"


@pytest.mark.parametrize(("unheard", "seen"), [(False, "60 s"), (True, ">60 s")])
def test_the_silence_of_a_member_that_was_never_heard_is_at_least_that_long(unheard: bool, seen: str) -> None:
    leading = replace(leader("n0"), peers=(PeerStatus("n2", last_contact_ms=60_000, unheard=unheard),))
    group = judged(leading, other("n0"), gone("n2"))
    assert seen in _row(group, next(node for node in group.nodes if node.id == "n2"), "")
    assert not any(str(cell).startswith(">") for cell in _row(group, leading, ""))


def test_a_node_that_a_recovery_left_behind_is_not_added_with_its_log() -> None:
    recovered = replace(leader(voters="n1"), term=70_000, lineage="ab" * 16, last_index=9)
    old = replace(other("n0", knows="n2"), term=2, last_index=12)
    leads = replace(old, id="n2", role="leader", leader_confirmed=True)
    todo = "move its data folder away, start it with an empty one and spare: true, then dledger member add --id"
    for node in (old, leads):
        assert note(node.id, recovered, old, leads).startswith(f"not a member, and it has a log of its own: stop it, {todo} {node.id}")
    why = "lineage: n0 has the log of the first lineage, n1 that of lineage abababab: a recovery or a restore parted them"
    told = replace(recovered, learners=("n0",), peers=(PeerStatus("n0", voter=False, refused=f"{why}; ... an empty folder"),))
    assert note("n0", told, old).endswith(f"empty folder: stop it, dledger member remove --id n0 --yes, {todo} n0, and promote it")


def test_no_command_is_proposed_against_the_survivor_of_a_recovery() -> None:
    """It does not lead yet, and the members of before do."""
    survivor = replace(other("n0", knows=""), term=70_000, lineage="ab" * 16, last_index=9)
    before = leader("n2", n0="lineage: n0 has the log of lineage abababab, n1 that of the first lineage; ... an empty folder")
    found = note("n0", replace(before, term=2), survivor, other("n2"))
    assert found.startswith("refused by its peers: lineage: n0 has the log of lineage abababab")
    assert "dledger" not in found
