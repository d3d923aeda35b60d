"""Names of topics, groups and nodes: which are allowed, which are the system's own, and how retry and dead-letter topics are called."""

from __future__ import annotations

import re

from dledger_wire.errors import InvalidNameError

MAX_TOPIC_CHARS = 127
MAX_GROUP_CHARS = 120
MAX_ID_CHARS = 255  # of a client, and of its session
MAX_TOPIC_QUEUES = 65536  # in all replica groups together
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = SYSTEM_PREFIX + "wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # where RocketMQ's clients write what became of messages: a topic like those of applications
AUTO_CREATE_TOPIC = "TBW102"
SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        "OFFSET_MOVED_EVENT",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
    }
)
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_NODE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_topic(name: str) -> str:
    """``name`` if it may be a topic.  Raises InvalidNameError that says what is wrong with it."""
    return _check("topic name", name, MAX_TOPIC_CHARS)


def check_new_topic(name: str) -> str:
    """``name`` if users may create a topic of that name.  Raises InvalidNameError."""
    if (group := group_of_topic(check_topic(name))) or name in (RETRY_PREFIX, DLQ_PREFIX):
        of = "retries" if name.startswith(RETRY_PREFIX) else "dead letters"
        raise InvalidNameError(f"topic name {name!r} is that of the {of} of consumer group {group!r}; expected a name of your own")
    return name


def check_group(name: str) -> str:
    """``name`` if it may be a producer or consumer group.  Raises InvalidNameError."""
    return _check("group name", name, MAX_GROUP_CHARS)


def check_producer_id(name: str) -> str:
    """``name`` if a producer may have it as its id.  Raises InvalidNameError."""
    return _check("producer_id", name, MAX_GROUP_CHARS)


def is_node_name(name: str) -> bool:
    """Whether a node, replica group or cluster may be called ``name``: letters, digits, _ and -, at most 64."""
    return _NODE.fullmatch(name) is not None


def _check(kind: str, name: str, limit: int) -> str:
    if not name:
        raise InvalidNameError(f"{kind} is empty; expected 1 to {limit} characters of A-Z a-z 0-9 _ - % |")
    if not isinstance(name, str):
        raise InvalidNameError(f"{kind} {name!r}: expected text")
    if len(name) > limit:
        raise InvalidNameError(f"{kind} {name[:40]!r}... has {len(name)} characters; expected at most {limit}")
    if name.startswith("-"):
        raise InvalidNameError(f"{kind} {name!r} begins with '-', as options do; expected another first character")
    if not _ALLOWED.fullmatch(name):
        bad = next(character for character in name if not _ALLOWED.fullmatch(character))
        raise InvalidNameError(f"{kind} {name!r}: character {bad!r}; expected only A-Z a-z 0-9 _ - % |")
    return name


def is_system_topic(name: str) -> bool:
    """Whether users may neither create nor delete the topic."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def group_of_topic(topic: str) -> str:
    """The consumer group whose retries or dead letters a topic has; empty for any other topic."""
    return next((topic.removeprefix(prefix) for prefix in (RETRY_PREFIX, DLQ_PREFIX) if topic.startswith(prefix)), "")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where RocketMQ's clients send the answers to requests of other clients; nothing is stored there."""
    return f"{cluster}_REPLY_TOPIC"


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
