"""What a replica group can do now, judged from what its nodes say: who is a member, whose acknowledgement counts, what mends it.

Owns the judgement; ``dledger_cli.commands.status`` shows it.  The leader's word counts where there is one: it knows the committed
membership, and from whom it hears.  Without a leader a voter counts when it answers and the other voters take links from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dledger_cli.context import NodeAnswer

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

CANNOT_STORE = ("read-only: the disk is full", "stopped")
OTHER_FOLDER = " comes with data folder"  # behind the node whose folder is not the one known
TAKES_NO_MESSAGES = "read-only"


@dataclass(frozen=True, slots=True)
class Standing:
    """One replica group."""

    name: str
    answers: tuple[NodeAnswer, ...]  # of the file's nodes, then of members that are not in it
    leader: NodeAnswer | None
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    acknowledging: frozenset[str]

    @property
    def needed(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def spare(self) -> int:
        """How many more voters may fail before writes stop; negative when they have stopped."""
        return len(self.acknowledging) - self.needed

    @property
    def takes_messages(self) -> bool:
        """Whether a message can be stored now: there is a leader that takes it, and a majority that acknowledges."""
        return self.leader is not None and self.spare >= 0 and not _state(self.leader).startswith(TAKES_NO_MESSAGES)

    @property
    def healthy(self) -> bool:
        """Every member follows the leader and is in order, and every voter acknowledges.  Nodes that are no members are not looked at."""
        if self.leader is None or self.leader.status is None or len(self.acknowledging) < len(self.voters):
            return False
        members = [answer for answer in self.answers if self.is_member(answer.id)]
        leader = self.leader.id
        return all(
            each.status is not None and _state(each).partition(";")[0] in ("", "ok") and each.status.leader == leader for each in members
        )

    def is_member(self, node_id: str) -> bool:
        return node_id in self.voters or node_id in self.learners

    def refusal(self, node_id: str) -> str:
        """Why other members take no link from this one: the leader's word, else that of all others; empty when they do."""
        if self.leader is not None:
            return _refused_by(self.leader, node_id)
        words = [_refused_by(other, node_id) for other in self.answers if other.id in self.voters and other.id != node_id and other.status]
        return words[0] if words and all(words) else ""

    def note(self, answer: NodeAnswer, several_groups: bool = False) -> str:
        """What is to be known of a node, and the command that mends it."""
        notes = []
        group = f" --group {self.name}" if several_groups else ""
        knows = bool(self.voters)
        if knows and not self.is_member(answer.id):
            notes.append(f"not a member: dledger member add --id {answer.id}{group}")
        elif refused := self.refusal(answer.id):
            notes.append(f"refused by its peers: {refused}")
            if "folder" in refused:
                notes[-1] += f": dledger member remove --id {answer.id}{group} --yes, then add and promote"
        if answer.status is None:
            return ", ".join([f"unreachable: {answer.error}", *notes])
        if not answer.in_file:
            notes.append("not in the cluster file")
        state = _state(answer)
        if state not in ("", "ok"):
            notes.insert(0, state)
        if answer.status.role == "leader":
            notes.append("master on" if answer.status.leader_confirmed else "confirming its term")
            if answer.status.leader_confirmed and not answer.status.services_term:
                notes.append(answer.status.role_state)
        elif not answer.status.leader and not notes:
            notes.append("knows no leader")
        elif answer.id in self.voters and self.leader is not None and answer.id not in self.acknowledging and not notes:
            notes.append("does not acknowledge yet")
        return ", ".join(notes)


def standing_of(name: str, answers: Iterable[NodeAnswer]) -> Standing:
    """Judge group ``name`` by the answers of its nodes."""
    found = tuple(answer for answer in answers if answer.group == name)
    leader = _leader(found)
    teller = leader or max((each for each in found if each.status and each.status.voters), key=_committed, default=None)
    voters = tuple(teller.status.voters) if teller and teller.status else tuple(each.id for each in found)
    learners = tuple(teller.status.learners) if teller and teller.status else ()
    standing = Standing(name, found, leader, voters, learners, frozenset())
    acknowledging = frozenset(voter for voter in voters if _acknowledges(standing, voter))
    return Standing(name, found, leader, voters, learners, acknowledging)


def standings_of(cluster: ClusterConfig, answers: list[NodeAnswer]) -> list[Standing]:
    return [standing_of(group.name, answers) for group in cluster.groups]


def all_healthy(cluster: ClusterConfig, answers: list[NodeAnswer]) -> bool:
    """Every member up, in order, following the leader of its group; every voter acknowledges."""
    return all(standing.healthy for standing in standings_of(cluster, answers))


def _acknowledges(standing: Standing, voter: str) -> bool:
    answer = next((each for each in standing.answers if each.id == voter), None)
    if answer is not None and _state(answer).startswith(CANNOT_STORE):
        return False
    leader = standing.leader
    if leader is None or leader.status is None:
        return answer is not None and answer.status is not None and not standing.refusal(voter)
    return voter == leader.id or any(peer.id == voter and peer.acknowledges for peer in leader.status.peers)


def _leader(answers: Iterable[NodeAnswer]) -> NodeAnswer | None:
    """The newest leader that has confirmed its term."""
    leaders = [answer for answer in answers if answer.status and answer.status.role == "leader" and answer.status.leader_confirmed]
    return max(leaders, key=lambda answer: answer.status.term if answer.status else 0, default=None)


def _committed(answer: NodeAnswer) -> int:
    return answer.status.committed_index if answer.status else -1


def _state(answer: NodeAnswer) -> str:
    return answer.status.state if answer.status else ""


def _refused_by(answer: NodeAnswer, node_id: str) -> str:
    """Why ``answer``'s node and this one have no link; empty when it is that node's own folder that this one refuses."""
    if answer.status is None:
        return ""
    text = next((peer.refused for peer in answer.status.peers if peer.id == node_id), "")
    return "" if OTHER_FOLDER in text and f"{node_id}{OTHER_FOLDER}" not in text else text


def sentence(standings: list[Standing]) -> str:
    """What an operator wants to know: what works, and what one more failure would do."""
    answers = [answer for standing in standings for answer in standing.answers]
    up = sum(answer.status is not None for answer in answers)
    count = len(standings)
    start = f"{count} group{'s' if count > 1 else ''}, {up} of {len(answers)} node{'s' if len(answers) > 1 else ''} up, "
    broken = [standing for standing in standings if standing.spare < 0]
    if broken:
        names = ", ".join(standing.name for standing in broken)
        return start + f"no quorum in {names} (writes are stopped until another {_missing(broken)})"
    silent = [
        voter for standing in standings for voter in standing.voters if voter not in standing.acknowledging and _answers(standing, voter)
    ]
    if silent:
        start += f"{', '.join(silent)} cannot acknowledge, "
    if any(standing.leader is None for standing in standings):
        return start + "quorum ok, but a leader is still being elected"
    full = [standing for standing in standings if not standing.takes_messages]
    if full:
        leads = ", ".join(standing.leader.id for standing in full if standing.leader)
        return start + f"quorum ok, but {leads} leads and takes no new messages (writes are stopped until its disk has room)"
    spare = min(standing.spare for standing in standings)
    if spare == 0:
        return start + "quorum ok (losing one more stops writes)"
    return start + f"quorum ok (writes go on when {'one more node fails' if spare == 1 else f'{spare} more nodes fail'})"


def _answers(standing: Standing, voter: str) -> bool:
    return any(answer.id == voter and answer.status is not None for answer in standing.answers)


def _missing(broken: list[Standing]) -> str:
    """What would bring writes back: a node that returns, or one that runs and cannot acknowledge."""
    stuck = [voter for standing in broken for voter in standing.voters if voter not in standing.acknowledging and _answers(standing, voter)]
    return f"voter acknowledges; {', '.join(stuck)} cannot now" if stuck else "node returns"
