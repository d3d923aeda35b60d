"""The state of replica groups in words: one sentence for the cluster, and a note on each node with the command that repairs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from dledger_client.admin.cluster_status import EXPIRED

if TYPE_CHECKING:
    from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus

CERTIFICATE_EXPIRED = "certificate has expired"  # in the words of OpenSSL
NOT_RUNNING = "connection refused"
MASTER_ON = "master on"
RENEW = "replace the file of security.tls.cert on that node (dledger certs create), it is read without a restart"


def node_note(group: ReplicaGroupStatus, node: NodeStatus, *, several_groups: bool = False, spares: Collection[str] = ()) -> str:
    """What is wrong with a node, and the command that repairs it; of a leader, how far it has taken over.  ``spares``: the spare nodes of
    the cluster file."""
    notes = []
    option = f" --replica-group {group.name}" if several_groups else ""
    if group.voters and not group.is_member(node.id):
        notes.append(_not_a_member(group, node, option))
    elif refused := group.refusal(node.id):
        notes.append(f"refused by its peers: {refused}")
        if _is_of_another_lineage(group, node):
            notes[-1] += f": stop it, dledger member remove --id {node.id}{option} --yes, {_emptied(node, option)}, and promote it"
        elif "lineage" not in refused and "folder" in refused:
            notes[-1] += f": dledger member remove --id {node.id}{option} --yes, then dledger member add --id {node.id}{option}, then"
            notes[-1] += f" dledger member promote --id {node.id}{option} --wait 600"
    if not node.reachable:
        return ", ".join([f"unreachable: {node.error}", *_remedies(group, node), *notes])
    if not node.configured:
        notes.append("a spare node of the cluster file" if node.id in spares else "not in the cluster file")
    if node.state not in ("", "ok"):
        notes.insert(0, node.state)
    if node.role == "leader":
        notes.append(MASTER_ON if node.leader_confirmed else "confirming its term")
        if node.leader_confirmed and not node.services_term:
            notes.append(node.role_state)
    elif not node.leader and not notes:
        notes.append("knows no leader")
    elif node.id in group.voters and group.leader is not None and node.id not in group.acknowledging and not notes:
        notes.append("does not acknowledge yet")
    return ", ".join([*notes, *node.warnings])


def connections_text(states: Mapping[str, int], bottleneck: str) -> str:
    """How many connections a node has and how many of them are held up, by what: ``40``, ``12/40 flow: disk``, ``3/40 blocked: memory``."""
    total = sum(states.values())
    held = [f"{count}/{total} {state}" for state in ("blocked", "flow") if (count := states.get(state, 0))]
    return ", ".join(held or [str(total)]) + (f": {bottleneck}" if bottleneck else "")


def why_not_healthy(groups: Sequence[ReplicaGroupStatus]) -> str:
    """The sentence of ``groups``, and the note on each member of those that are not healthy, on one line."""
    several = len(groups) > 1
    notes = [
        f"{group.name}/{node.id}: {note}"
        for group in groups
        for node in group.nodes
        if not group.healthy and (group.is_member(node.id) or not group.voters)
        if (note := node_note(group, node, several_groups=several)) not in ("", MASTER_ON)
    ]
    return "; ".join([sentence(groups), *notes])


def _remedies(group: ReplicaGroupStatus, node: NodeStatus) -> list[str]:
    """What to do about a node that gives no answer: what the leader knows of it, or how it is started."""
    peer = group.peer(node)
    if CERTIFICATE_EXPIRED in node.error:
        known = peer.cannot_lead if peer is not None else ""
        return [known if EXPIRED in known else RENEW]
    if NOT_RUNNING in node.error:
        return [f"start it: dledger up, or on its host: dledger node --id {node.id}"]
    return []


def _not_a_member(group: ReplicaGroupStatus, node: NodeStatus, option: str) -> str:
    """One that is down, or has a log of the group's, was a member before those that the cluster file does not name; it does not come back
    beside them."""
    if _is_of_another_lineage(group, node) or (node.role == "leader" and group.leader is not None and group.leader.id != node.id):
        return f"not a member, and it has a log of its own: stop it, {_emptied(node, option)}"
    successors = [each.id for each in group.nodes if not each.configured and group.is_member(each.id)]
    if not successors or (node.reachable and not node.last_index):
        return f"not a member: dledger member add --id {node.id}{option}"
    return f"not a member, {', '.join(successors)} took its place{': stop it' if node.reachable else ''}"


def _is_of_another_lineage(group: ReplicaGroupStatus, node: NodeStatus) -> bool:
    """Whether a recovery or a restore left the node behind.  Of a node in a later term than the leader the opposite may be true."""
    leader = group.leader
    return leader is not None and node.last_index > 0 and node.lineage != leader.lineage and node.term < leader.term


def _emptied(node: NodeStatus, option: str) -> str:
    return f"move its data folder away, start it with an empty one and spare: true, then dledger member add --id {node.id}{option}"


def replicas_of(group: ReplicaGroupStatus) -> dict[str, list[str]]:
    """The members of a group: in sync with the leader, lagging behind it, missing."""
    found: dict[str, list[str]] = {"in_sync": [], "lagging": [], "missing": []}
    by_id = {node.id: node for node in group.nodes}
    for member in (*group.voters, *group.learners):
        node = by_id.get(member)
        if node is None or not node.reachable:
            found["missing"].append(member)
        else:
            found["in_sync" if group.is_in_sync(node) else "lagging"].append(member)
    return found


def replicas_line(group: ReplicaGroupStatus) -> str:
    """``replica group g0: in sync n0, n1; missing n2``.  Without a leader it is unknown which replicas lag."""
    words = {"in_sync": "in sync", "lagging": "lagging" if group.leader is not None else "up", "missing": "missing"}
    parts = [f"{words[kind]} {', '.join(ids)}" for kind, ids in replicas_of(group).items() if ids]
    return f"replica group {group.name}: {'; '.join(parts)}"


def sentence(groups: Sequence[ReplicaGroupStatus]) -> str:
    """What works and what the next failure stops."""
    start = f"{len(groups)} group{'s' if len(groups) > 1 else ''}, {_up(groups)}, "
    broken = [group for group in groups if group.spare < 0]
    unknown = [group for group in broken if group.unreachable_leader is not None]
    if unknown:
        return f"{start}{_unreachable(unknown)}, so whether messages are stored is not known here"
    if broken:
        names = ", ".join(group.name for group in broken)
        return start + f"no quorum in {names} (writes are stopped until another {_missing(broken)})"
    silent = [voter for group in groups for voter in _cannot_acknowledge(group)]
    if silent:
        start += f"{', '.join(silent)} cannot acknowledge, "
    if any(not group.leader_id for group in groups):
        lost = _unreachable([group for group in groups if group.unreachable_leader is not None])
        return start + f"quorum ok, but {lost or 'a leader is still being elected'}"
    late = [f"leader {node.id} gave {node.error}" for group in groups if (node := group.silent_leader) is not None]
    if late:
        return start + f"quorum ok, but {', '.join(late)}"
    full = [group for group in groups if not group.takes_messages]
    if full:
        leads = ", ".join(group.leader.id for group in full if group.leader)
        return start + f"quorum ok, but {leads} leads and takes no new messages (writes are stopped until its disk has room)"
    unfit = [voter for group in groups for voter in group.acknowledging if _is_up(group, voter) and group.cannot_lead(voter)]
    if unfit:
        start += f"{', '.join(sorted(unfit))} must not lead, "
    spare = min(group.spare for group in groups)
    if spare == 0:
        return start + f"quorum ok (losing {_needed(groups)} stops writes)"
    return start + f"quorum ok (writes go on when {'one more node fails' if spare == 1 else f'{spare} more nodes fail'})"


def _up(groups: Sequence[ReplicaGroupStatus]) -> str:
    """``2 of 3 nodes up``: of the members; where they are unknown, of the nodes that were asked."""
    members = [node for group in groups for node in group.nodes if not group.voters or group.is_member(node.id)]
    text = f"{sum(node.reachable for node in members)} of {len(members)} node{'s' if len(members) != 1 else ''} up"
    others = sum(len(group.nodes) for group in groups) - len(members)
    return text + (f" ({others} more {'is no member' if others == 1 else 'are no members'})" if others else "")


def _is_up(group: ReplicaGroupStatus, voter: str) -> bool:
    return any(node.id == voter and node.reachable for node in group.nodes)


def _unreachable(groups: Sequence[ReplicaGroupStatus]) -> str:
    """The leaders that other nodes name, and that cannot be reached."""
    return ", ".join(f"leader {node.id} is unreachable: {node.error}" for group in groups if (node := group.unreachable_leader) is not None)


def _needed(groups: Sequence[ReplicaGroupStatus]) -> str:
    """Which nodes must not fail; ``one more`` where it is whichever of those that count."""
    few = [group for group in groups if group.spare == 0]
    needed = [(group, node.id) for group in few for node in group.nodes if group.stopped_without([node.id])]
    counted = sum(not group.hindrance(voter) for group in few for voter in group.voters)
    named = [node for group, node in needed if not group.hindrance(node)]
    return ", ".join(named) if 0 < len(named) < counted else "one more"


def _cannot_acknowledge(group: ReplicaGroupStatus) -> list[str]:
    """Voters that run and do not acknowledge."""
    running = {node.id for node in group.nodes if node.reachable}
    return [voter for voter in group.voters if voter in running and voter not in group.acknowledging]


def _missing(broken: Sequence[ReplicaGroupStatus]) -> str:
    """What starts writes again: a node that returns, or one that runs and cannot acknowledge."""
    stuck = [voter for group in broken for voter in _cannot_acknowledge(group)]
    return f"voter acknowledges; {', '.join(stuck)} cannot now" if stuck else "node returns"


def span(span_ms: float) -> str:
    """A time that has passed: ``850 ms``, ``12 s``, ``3 min``, ``2 h``, ``5 days``."""
    if span_ms < 1_000:
        return f"{max(0, span_ms):.0f} ms"
    seconds = span_ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
