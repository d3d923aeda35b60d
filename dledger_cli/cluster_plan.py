"""What a cluster file asks of the running cluster: replica groups to add and to drain, policies to set, and what only an operator can do.

Owns the comparison and the checks against what runs.  The plan of a cluster that is as its file says is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dledger_wire.errors import ConfigError
from dledger_wire.status import ACTIVE

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, GroupConfig
    from dledger_client.admin.directory import ClusterDirectory, RegisteredGroup
    from dledger_client.admin.replica_groups import ReplicaGroupDescription


@dataclass
class Plan:
    """In the order in which it is carried out; ``notes`` are for the operator.

    ``policies``: the wishes to set, by group.
    ``forget``: removed groups that topics still name, as after a command that died; ``removed``: all that were removed before.
    """

    add: list[GroupConfig] = field(default_factory=list)
    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    drain: list[str] = field(default_factory=list)
    forget: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        nodes = {group.name: ", ".join(f"{node.id} at {node.address}" for node in group.nodes) for group in self.add}
        added = [f"add replica group {name}: {text}" for name, text in nodes.items()]
        leaving = [f"drain replica group {name}, then remove it" for name in self.drain]
        leaving += [f"complete the removal of replica group {name}: topics still name it" for name in self.forget]
        return [_policy_text(name, wishes) for name, wishes in self.policies.items()] + added + leaving


def make_plan(
    config: ClusterConfig, running: ClusterDirectory, states: Mapping[str, ReplicaGroupDescription], in_topics: Collection[str] = ()
) -> Plan:
    """Compare; ConfigError names everything in the file that contradicts what runs.

    ``states``: of the groups that can be asked; ``in_topics``: the groups that topics name.
    """
    check_against_running(config, running)
    known = {group.name: group for group in running.groups}
    plan = Plan()
    for group in config.groups:
        registered = known.get(group.name)
        if registered is None or not is_begun(registered):
            plan.add.append(group)
            continue
        plan.notes += _differences(group, registered, {spare.id for spare in config.spares})
        if group.name in states and (wishes := _policy(config, group, states[group.name])):
            plan.policies[group.name] = wishes
    up = {node.id for group in running.groups for node in group.nodes} | {node.id for node in running.spares}
    idle = [spare.id for spare in config.spares if running.from_name_server and spare.id not in up]
    plan.notes += [f"spare node {each} does not run: dledger up, or dledger node --id {each}" for each in idle]
    named = {group.name for group in config.groups}
    plan.drain = [name for name, group in known.items() if name not in named and not group.is_removed]
    plan.removed = [name for name, group in known.items() if group.is_removed]
    plan.forget = [name for name in plan.removed if name in in_topics]
    return plan


def is_begun(group: RegisteredGroup) -> bool:
    """Whether it has had a leader: a node of a group that could not be added may run alone, and registers."""
    return bool(group.leader_id or group.term or group.is_removed)


def check_against_running(config: ClusterConfig, running: ClusterDirectory) -> None:
    """ConfigError unless the file can be one of this cluster: names, ids and addresses."""
    problems: list[str] = []
    if running.cluster and config.cluster != running.cluster:
        problems.append(f"the file is of cluster {config.cluster}, the running one is {running.cluster}")
    known = {group.name: group for group in running.groups}
    ids = {node.id: (group.name, node.address) for group in running.groups if not group.is_removed for node in group.nodes}
    addresses = {address: (name, node_id) for node_id, (name, address) in ids.items()}
    for group in config.groups:
        if (found := known.get(group.name)) is not None and found.is_removed:
            text = "was removed, and offsets and checkpoints still name its queues; expected a name that was never used"
            problems.append(f"replica group {group.name} {text}")
        for node in group.nodes:
            owner, address = ids.get(node.id, (group.name, node.address))
            if owner != group.name:
                problems.append(f"node {node.id} of {group.name}: a node of {owner} at {address} has that id")
            user, user_id = addresses.get(node.address, (group.name, node.id))
            if user_id != node.id:
                problems.append(f"node {node.id} of {group.name}: {node.address} is the address of {user_id} of {user}")
    for spare in config.spares:
        user, user_id = addresses.get(spare.address, ("", spare.id))
        if user_id != spare.id:
            problems.append(f"spare node {spare.id}: {spare.address} is the address of {user_id} of {user}")
    if problems:
        raise ConfigError("; ".join(problems))


def _differences(group: GroupConfig, registered: RegisteredGroup, spares: Collection[str]) -> list[str]:
    """Members and labels that differ: changed by other commands, at the operator's pace.  What a spare node has replaced stays replaced."""
    notes: list[str] = []
    members = {node.id: node for node in registered.nodes if node.member}
    option = f"--replica-group {group.name}"
    unnamed = members.keys() - {node.id for node in group.nodes}
    successors = ", ".join(sorted(unnamed & set(spares)))
    for node in group.nodes:
        if node.id not in members:
            if not node.spare:
                todo = f"{successors} took its place" if successors else f"dledger member add --id {node.id} {option}"
                notes.append(f"{node.id} is not a member of {group.name}: {todo}")
            continue
        there = members[node.id]
        if there.address != node.address:
            notes.append(f"{node.id} is at {there.address}: restart it with this file to move it to {node.address}")
        if there.host and (there.host, there.rack) != (node.host_label, node.rack):
            notes.append(f"{node.id}: restart it to take its labels (host {node.host_label}, rack {node.rack or '-'})")
    foreign = unnamed - set(spares)
    notes += [f"{each} of {group.name} is not in the file: dledger member remove --id {each} {option}" for each in foreign]
    if registered.state != ACTIVE:
        notes.append(f"{group.name} is {registered.state}: dledger cluster drain {group.name} --undo makes it active")
    return sorted(notes)


def _policy(config: ClusterConfig, group: GroupConfig, state: ReplicaGroupDescription) -> dict[str, int]:
    """The wishes of the file's group that are not those of the running one."""
    wanted = {"voters": group.wanted_voters, "learners": group.learners, "replace_after_ms": config.replace_after_ms(group)}
    return {name: value for name, value in wanted.items() if value != getattr(state, name)}


def _policy_text(group: str, wishes: Mapping[str, int]) -> str:
    names = {"replace_after_ms": "replaceAfter"}
    return f"set the policy of {group}: " + ", ".join(f"{names.get(name, name)} {value}" for name, value in wishes.items())
