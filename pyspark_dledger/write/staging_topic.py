"""The staging topic: where tasks store their rows until the commit publishes them.

Owns its creation and its layout over replica groups: one control queue for the manifests, queues for rows in every group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dledger_client import Admin
from dledger_client.cluster.routes import TopicQueues
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, UnreachableError
from dledger_wire.status import Perm

CONTROL_QUEUE = 0
STAGING_QUEUES = 9  # the control queue and eight for rows
STAGING_QUEUES_A_GROUP = 3  # at least, with several replica groups


@dataclass(frozen=True, slots=True)
class StagingTopic:
    """The staging topic: the replica group of its control queue and its queue count there, and the queues for rows, as
    (replica group, queue id), of all groups that answered.
    """

    topic: str
    group: str
    queues: int
    places: tuple[tuple[str, int], ...] = ()

    def place(self, number: int) -> tuple[str, int]:
        """The queue for the stream of rows with this number."""
        places = self.places or tuple((self.group, number) for number in range(CONTROL_QUEUE + 1, self.queues))
        return places[number % len(places)]


def create_staging(admin: Admin, topic: str, groups: int) -> None:
    """Create the staging topic over all replica groups, without those that do not answer."""
    queues = max(STAGING_QUEUES, STAGING_QUEUES_A_GROUP * groups)
    try:
        admin.create_topic(topic, queues=queues, if_not_exists=True)
    except (NotLeaderError, UnreachableError):
        silent = admin.list_topics(partial=True).unanswered
        alive = sorted(group.name for group in admin.describe_cluster().replica_groups if group.name not in silent)
        if not silent or not alive:
            raise
        admin.create_topic(topic, queues=queues, replica_groups=alive, if_not_exists=True)


def staging_of(topic: str, found: Sequence[TopicQueues], silent: Collection[str]) -> StagingTopic:
    """The control queue is queue 0 of the first replica group by name, whichever answer: an application must find its
    manifest again.  Queue 0 of the others stays empty.
    """
    parts = sorted(found, key=lambda part: part.replica_group)
    first = parts[0]
    if first.replica_group in silent:
        raise NotLeaderError(
            f"staging topic {topic}: its control queue is in {first.replica_group}, which has no leader", leader_address=""
        )
    places = [
        (part.replica_group, number)
        for number in range(CONTROL_QUEUE + 1, max(part.write_queues for part in parts))
        for part in parts
        if number < part.write_queues and part.perm & Perm.WRITE and part.replica_group not in silent
    ]
    if not places:
        queues = sum(part.write_queues for part in parts)
        raise InvalidArgumentError(f"staging topic {topic} has {queues} queue; expected at least 2 in a replica group that has a leader")
    return StagingTopic(topic, first.replica_group, first.write_queues, tuple(places))
