"""What Spark jobs were given: every row of a queue once, from its beginning to its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import Queue, TopicHistory, queue_of
from dledger_drill.history.records import Operation, Outcome


def check_spark(topic: TopicHistory) -> Iterator[Violation]:
    """Jobs read to the end when nothing is sent any more.  A job that was given nothing has one row, without values."""
    runs: dict[str, dict[Queue, list[Operation]]] = {run.data["job"]: defaultdict(list) for run in topic.spark}
    for run in topic.spark:
        if run.data["values"]:
            runs[run.data["job"]][queue_of(run)].append(run)
    for job, by_queue in runs.items():
        for queue, of_queue in by_queue.items():
            yield from _joined(topic, job, queue, of_queue)
        for queue in sorted(topic.stored.keys() - by_queue.keys()):
            if end := _acknowledged_end(topic, queue):
                text = f"the {job} was given nothing of {queue}, which has messages up to {end - 1}"
                yield Violation(ViolationKind.LOST, topic.audits[queue].round, text, ())


def _joined(topic: TopicHistory, job: str, queue: Queue, runs: Sequence[Operation]) -> Iterator[Violation]:
    """Runs of a queue join without gap and without overlap."""
    ordered = sorted(runs, key=lambda run: (run.data["first_offset"], run.invoked_ns))
    last = ordered[0]
    end = min(topic.stored.get(queue, ()), default=last.data["first_offset"])
    end = min(end, last.data["first_offset"])  # its head may have been deleted since
    for run in ordered:
        first = run.data["first_offset"]
        if first > end:
            text = f"the {job} left out offsets {end} to {first - 1} of {queue}"
            yield Violation(ViolationKind.LOST, run.round, text, (_without_values(last), _without_values(run)))
        elif first < end:
            text = f"the {job} has offsets {first} to {end - 1} of {queue} twice"
            yield Violation(ViolationKind.DOUBLED, run.round, text, (_without_values(last), _without_values(run)))
        end, last = max(end, first + len(run.data["values"])), run
    if (stored_end := _acknowledged_end(topic, queue)) > end:
        text = f"the {job} ended at offset {end} of {queue}, which has messages up to {stored_end - 1}"
        yield Violation(ViolationKind.LOST, last.round, text, (_without_values(last),))


def _acknowledged_end(topic: TopicHistory, queue: Queue) -> int:
    """One behind the last message that was acknowledged; one of unknown outcome may be stored after the jobs have ended."""
    acknowledged = (
        offset
        for offset, message in topic.stored.get(queue, {}).items()
        if (send := topic.sends.get(message.value)) is not None and send.outcome is Outcome.OK
    )
    return max(acknowledged, default=-1) + 1


def _without_values(run: Operation) -> Operation:
    data = {key: value for key, value in run.data.items() if key != "values"} | {"count": len(run.data["values"])}
    return Operation(run.process, run.kind, run.invoked_ns, run.returned_ns, run.outcome, run.round, data)
