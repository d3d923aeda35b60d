"""Start and end of a read: earliest, latest, offsets or timestamps, for all queues or per queue.

Queues are named ``group:queue``, or by the number alone if the topic is in one replica group; that group is filled in
from the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dledger_wire import strict_json
from dledger_wire.errors import InvalidArgumentError
from pyspark_dledger.options.parser import OptionParser, is_moment_ms

EARLIEST = -2
LATEST = -1

# (group, queue) -> offset or time, of one topic; group "" until it is filled in
ByQueue = dict[tuple[str, int], int]

_KEY = 'a key "group:queue" such as "g0:3", or "3" where the topic has one group'


@dataclass(frozen=True, slots=True)
class ReadBound:
    """A start or end.  ``timestamp_ms`` applies to all queues if it is set; otherwise ``queues`` (offsets) and
    ``times`` (ms) apply to the queues they name, and ``fallback`` (EARLIEST or LATEST) to all others.
    """

    fallback: int
    queues: Mapping[str, ByQueue] = field(default_factory=dict)
    timestamp_ms: int | None = None
    times: Mapping[str, ByQueue] = field(default_factory=dict)

    @property
    def has_times(self) -> bool:
        """Whether a timestamp applies to any queue."""
        return self.timestamp_ms is not None or bool(self.times)

    def time_of(self, topic: str, group: str, queue_id: int) -> int | None:
        """The timestamp that applies to a queue, if any."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        named = self.times.get(topic, {})
        return named.get((group, queue_id), named.get(("", queue_id)))

    def of_topics(self, topics: Collection[str]) -> ReadBound:
        """The bound without what it names of other topics."""
        queues, times = ({name: named[name] for name in named if name in topics} for named in (self.queues, self.times))
        return replace(self, queues=queues, times=times)

    def with_groups(self, option: str, groups: Mapping[str, Iterable[str]]) -> ReadBound:
        """A copy in which every queue has its replica group.  Raises InvalidArgumentError if it is ambiguous."""
        return replace(self, queues=_filled(option, self.queues, groups), times=_filled(option, self.times, groups))


def _filled(option: str, named: Mapping[str, ByQueue], groups: Mapping[str, Iterable[str]]) -> dict[str, ByQueue]:
    found: dict[str, ByQueue] = {}
    for topic, queues in named.items():
        own = sorted(groups.get(topic, ()))
        if len(own) > 1 and any(not group for group, _ in queues):
            short = next(queue for group, queue in queues if not group)
            raise InvalidArgumentError(
                f'option {option}: topic {topic} has queues in the replica groups {", ".join(own)}; expected "group:{short}" for "{short}"'
            )
        filled = {(group or "".join(own), queue): value for (group, queue), value in queues.items()}
        if len(filled) < len(queues):
            group, twice = next((group, queue) for group, queue in queues if group in own and ("", queue) in queues)
            raise InvalidArgumentError(f'option {option}: topic {topic}, queue "{group}:{twice}": named twice, also as "{twice}"')
        found[topic] = filled
    return found


def check_order(start: ReadBound, end: ReadBound) -> None:
    """Raise InvalidArgumentError for a queue whose end is before its start: nothing would be read of it, without a word."""
    for kind, starts, ends in (("", start.queues, end.queues), ("ByTimestamp", start.times, end.times)):
        for topic, queues in starts.items():
            for place, first in queues.items():
                last = ends.get(topic, {}).get(place, LATEST)
                if 0 <= last < first:
                    raise InvalidArgumentError(
                        f"option endingOffsets{kind}: topic {topic}, queue {place[0]}:{place[1]}: {last}; "
                        f"expected at least {first}, as startingOffsets{kind} has it"
                    )


def parse_read_bound(given: OptionParser, which: str, default: int, *, both: bool) -> ReadBound:
    """Parse the options that begin with ``which`` (starting or ending).

    Timestamps take precedence over offsets, and a global one over per-queue ones, as in the Kafka source.  ``both``:
    earliest and latest are both allowed, as for the start of a stream.
    """
    if given.optional(f"{which}Timestamp") is not None:
        return ReadBound(default, timestamp_ms=given.moment_ms(f"{which}Timestamp"))
    times = given.optional(f"{which}OffsetsByTimestamp")
    if times is not None:
        return ReadBound(default, times=parse_times(f"{which}OffsetsByTimestamp", times))
    name = f"{which}Offsets"
    text = given.optional(name)
    if text is None:
        return ReadBound(default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return _checked_word(name, text, words[text.lower()], default, both=both)
    return ReadBound(default, queues=parse_offsets(name, text, "earliest, latest or "))


def _checked_word(name: str, text: str, value: int, default: int, *, both: bool) -> ReadBound:
    # A batch that starts at the end, or ends at the start, reads nothing: this is a mistake.
    if value != default and not both:
        opposite = "earliest" if default == EARLIEST else "latest"
        raise InvalidArgumentError(f"option {name}: {text!r} reads nothing in a batch; expected {opposite} or JSON offsets")
    return ReadBound(value)


def parse_offsets(name: str, text: str, words: str = "") -> dict[str, ByQueue]:
    """``{"topic": {"group:queue": offset}}``; offset -2 is earliest, -1 latest.  Raises InvalidArgumentError naming
    what is wrong.  ``words``: what else could be given.
    """
    return _by_queue(name, text, f'{words}JSON {{"topic":{{"group:queue":offset}}}}', _offset)


def parse_times(name: str, text: str) -> dict[str, ByQueue]:
    """``{"topic": {"group:queue": ms}}``."""
    return _by_queue(name, text, 'JSON {"topic":{"group:queue":milliseconds}}', _time)


def parse_assigned(name: str, text: str) -> list[tuple[str, str, int]]:
    """``{"topic": [0, "g0:1"]}`` as (topic, group or "", queue)."""
    shape = 'JSON {"topic":[queue,...]}'
    return [
        (topic, *_queue_key(name, str(queue)))
        for topic, queues in _object(name, text, shape).items()
        for queue in _checked(isinstance(queues, list) and queues, queues, name, f"{topic}: {queues}", "a list of queues")
    ]


def _by_queue(name: str, text: str, shape: str, value_of: Callable[[str, str, Any], int]) -> dict[str, ByQueue]:
    result: dict[str, ByQueue] = {}
    for topic, queues in _object(name, text, shape).items():
        _checked(isinstance(queues, dict) and queues, queues, name, f"{topic}: {queues}", 'an object {"group:queue":number}')
        result[topic] = {_queue_key(name, key): value_of(name, key, value) for key, value in queues.items()}
        _checked(len(result[topic]) == len(queues), queues, name, f"{topic}: {queues}", "each queue once")
    return result


def _object(name: str, text: str, shape: str) -> dict[str, Any]:
    try:
        loaded = strict_json.parse(text, unique=True)
    except strict_json.NamedTwiceError as error:
        raise InvalidArgumentError(f"option {name}: {str(error)!r} is named twice") from None
    except ValueError:
        raise InvalidArgumentError(f"option {name}: {text!r}; expected {shape}") from None
    return dict(_checked(isinstance(loaded, dict) and loaded, loaded, name, text, shape))


def _queue_key(name: str, key: str) -> tuple[str, int]:
    group, separator, queue = key.rpartition(":")
    good = queue.isascii() and queue.isdecimal() and bool(group) == bool(separator)
    _checked(good, key, name, repr(key), _KEY)
    return group, int(queue)


def _offset(name: str, key: str, value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST
    return int(_checked(good, value, name, f"{key}: {value!r}", "an offset of 0 or more, -2 (earliest) or -1 (latest)"))


def _time(name: str, key: str, value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and is_moment_ms(value)
    return int(_checked(good, value, name, f"{key}: {value!r}", "milliseconds since 1970, of 13 digits"))


def _checked(condition: object, value: Any, name: str, found: str, expected: str) -> Any:
    """``value`` where the condition holds."""
    if not condition:
        raise InvalidArgumentError(f"option {name}: {found}; expected {expected}")
    return value
