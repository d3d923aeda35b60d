"""The pictures of the documentation, drawn by code so that words in them can be changed as easily as words in a page."""

from __future__ import annotations

from pathlib import Path

from svg import BLUE, GREEN, GREY, ORANGE, RED, Canvas, Note, Say, sequence, terminal

QUICKSTART_TEXT = Path(__file__).with_name("quickstart.txt")


def all_pictures() -> dict[str, str]:
    """SVG by file name."""
    return {
        "replica-group.svg": replica_group(),
        "write.svg": write(),
        "read.svg": read(),
        "failover.svg": failover(),
        "storage.svg": storage(),
        "consumer-group.svg": consumer_group(),
        "retry.svg": retry(),
        "transaction.svg": transaction(),
        "layers.svg": layers(),
        "quickstart.svg": terminal("Output of scripts/quickstart", QUICKSTART_TEXT.read_text(encoding="utf-8"), "./scripts/quickstart"),
    }


def replica_group() -> str:
    picture = Canvas(820, 330, "A replica group: one leader, two followers, producers and consumers")
    picture.box(20, 130, 130, 56, "Producer", fill=GREY)
    picture.box(310, 30, 200, 70, "Node n0\nleader", fill=GREEN)
    picture.box(220, 220, 180, 70, "Node n1\nfollower")
    picture.box(430, 220, 180, 70, "Node n2\nfollower")
    picture.box(670, 130, 130, 56, "Consumer\nor Spark task", fill=GREY)
    picture.arrow(150, 148, 308, 76, "send")
    picture.arrow(360, 102, 312, 218)
    picture.arrow(462, 102, 512, 218)
    picture.text(411, 196, "log entries", size=13)
    picture.arrow(612, 240, 700, 190)
    picture.text(700, 228, "read", size=13, anchor="start")
    picture.arrow(512, 64, 694, 128, "read", dashed=True)
    return picture.render()


def write() -> str:
    return sequence(
        "A write: the producer gets its result after a majority has stored the batch",
        ["Producer", "Leader n0", "Follower n1", "Follower n2"],
        [
            Say(0, 1, "batch of messages"),
            Note(1, "check, assign offsets, append to the log"),
            Say(1, 2, "log entry"),
            Say(1, 3, "log entry"),
            Note(1, "fsync", until=1),
            Note(2, "append, fsync"),
            Say(2, 1, "acknowledged", dashed=True),
            Note(1, "committed: 2 of 3 have it on disk", GREEN),
            Say(1, 0, "SEND_OK with queue offsets", dashed=True),
            Note(3, "append, fsync"),
            Say(3, 1, "acknowledged", dashed=True),
        ],
    )


def read() -> str:
    return sequence(
        "A read from a follower, with and without linearizable=True",
        ["Consumer", "Follower n1", "Leader n0", "Follower n2"],
        [
            Say(0, 1, "fetch from offset 42"),
            Say(1, 0, "committed messages", dashed=True),
            Note(0, "linearizable=True", ORANGE),
            Say(0, 1, "fetch, linearizable"),
            Say(1, 2, "read index?"),
            Say(2, 3, "heartbeat"),
            Say(3, 2, "still the leader", dashed=True),
            Say(2, 1, "commit index 981", dashed=True),
            Note(1, "wait until 981 is applied"),
            Say(1, 0, "committed messages", dashed=True),
        ],
    )


def failover() -> str:
    return sequence(
        "A failover: the leader dies, a follower is elected, the producer sends again",
        ["Producer", "Leader n0", "Follower n1", "Follower n2"],
        [
            Say(0, 1, "batch, sequence 7"),
            Say(1, 2, "log entry"),
            Note(1, "killed before it answers", RED),
            Note(2, "connection to n0 lost"),
            Say(2, 3, "pre-vote, then vote for term 5"),
            Say(3, 2, "granted", dashed=True),
            Note(2, "n1 is leader of term 5", GREEN),
            Say(0, 2, "batch, sequence 7 again"),
            Note(2, "sequence 7 is in the log: duplicate"),
            Say(2, 0, "SEND_OK, offset of the first copy", dashed=True),
            Note(1, "restarts, follows, catches up", BLUE),
        ],
    )


def storage() -> str:
    picture = Canvas(860, 330, "Files of a node: one log, and queues and indexes that point into it")
    picture.text(20, 34, "commitlog/ - the replicated log, one for all topics", anchor="start", bold=True)
    x = 20
    for text, width, fill in (
        ("orders q0\n#0 #1", 120, BLUE),
        ("payments q1\n#0", 110, ORANGE),
        ("orders q1\n#0", 100, GREEN),
        ("orders q0\n#2", 100, BLUE),
        ("command\ncommit offset", 130, GREY),
        ("payments q1\n#1 #2", 120, ORANGE),
        ("...", 50, GREY),
    ):
        picture.box(x, 50, width, 54, text, fill=fill)
        x += width + 8
    for left, fill, targets in ((20, BLUE, (60, 100, 410)), (300, ORANGE, (204, 660, 690))):
        for number, target in enumerate(targets):
            picture.box(left + number * 62, 190, 54, 34, f"#{number}", fill=fill)
            picture.arrow(left + 27 + number * 62, 188, target, 108)
    picture.text(20, 244, "consumequeue/orders/0", anchor="start", bold=True)
    picture.text(20, 262, "20 bytes per message", anchor="start", size=13)
    picture.text(300, 244, "consumequeue/payments/1", anchor="start", bold=True)
    picture.box(600, 190, 160, 34, "hash(orders#o-1)", fill=GREY)
    picture.arrow(640, 188, 440, 108, dashed=True)
    picture.text(600, 244, "index/", anchor="start", bold=True)
    picture.text(600, 262, "keys and message ids", anchor="start", size=13)
    picture.text(20, 306, "config/ - snapshots of replicated state: topics, consumer offsets, locks ...", anchor="start", bold=True)
    return picture.render()


def consumer_group() -> str:
    picture = Canvas(820, 300, "A consumer group: each queue belongs to one consumer, and the cluster keeps its offset")
    picture.text(110, 30, "topic orders", bold=True)
    for number, (target, offset) in enumerate(((90, 42), (90, 17), (200, 63), (200, 8))):
        y = 50 + number * 60
        picture.box(20, y, 180, 44, f"queue {number}", fill=BLUE)
        picture.arrow(202, y + 22, 388, target + 24)
        picture.box(640, y, 150, 44, f"queue {number}: {offset}", fill=GREY)
    picture.text(465, 30, "consumer group audit", bold=True)
    picture.box(390, 84, 150, 60, "consumer A", fill=GREEN)
    picture.box(390, 194, 150, 60, "consumer B", fill=GREEN)
    for y in (114, 224):
        picture.arrow(542, y, 636, y, "commit", dashed=True)
    picture.text(715, 30, "committed offsets", bold=True)
    return picture.render()


def retry() -> str:
    picture = Canvas(820, 230, "Retry: from the topic to the retry topic, and after 16 retries to the dead letters")
    picture.box(20, 80, 140, 60, "orders", fill=BLUE)
    picture.box(260, 80, 150, 60, "listener", fill=GREEN)
    picture.box(500, 20, 200, 56, "%RETRY%audit\n10 s ... 2 h", fill=ORANGE)
    picture.box(500, 150, 200, 56, "%DLQ%audit\ndead letters", fill=RED)
    picture.arrow(162, 110, 258, 110, "deliver")
    picture.arrow(412, 96, 498, 50)
    picture.text(440, 58, "fails", size=13)
    picture.arrow(498, 66, 412, 108, dashed=True)
    picture.text(476, 108, "again, up to 16 times", size=12, anchor="start")
    picture.arrow(412, 126, 498, 172)
    picture.text(466, 140, "last attempt", size=13, anchor="start")
    picture.arrow(498, 192, 100, 144, dashed=True)
    picture.text(230, 192, "dledger dlq redrive", size=13)
    return picture.render()


def transaction() -> str:
    return sequence(
        "A transaction: consumers see the message after the commit",
        ["Your application", "Producer", "Leader", "Consumer"],
        [
            Say(0, 1, "send_in_transaction"),
            Say(1, 2, "half message"),
            Note(2, "stored, not visible"),
            Say(1, 0, "run the local transaction"),
            Say(0, 1, "COMMIT", dashed=True),
            Say(1, 2, "commit"),
            Note(2, "published in one log entry", GREEN),
            Say(2, 3, "message"),
            Note(1, "no answer, or the producer died:", ORANGE, until=2),
            Say(2, 1, "check: what became of it?"),
            Say(1, 2, "COMMIT or ROLLBACK", dashed=True),
        ],
    )


def layers() -> str:
    picture = Canvas(800, 400, "Packages and the direction of their imports")
    picture.box(20, 20, 760, 44, "dledger_cli - command line", fill=GREY)
    picture.box(20, 84, 360, 44, "dledger_offline - backup, recovery, checks", fill=GREY)
    picture.box(420, 84, 360, 44, "dledger_drill - faults on purpose, and checks", fill=GREY)
    picture.box(20, 150, 360, 50, "broker - services of one node", fill=GREEN)
    picture.box(20, 220, 360, 50, "store - queues, indexes, replicated state", fill=GREEN)
    picture.box(20, 290, 360, 50, "dledger - Raft and the log", fill=GREEN)
    picture.box(420, 150, 170, 50, "pyspark_dledger\nSpark source, sink", fill=BLUE)
    picture.box(610, 150, 170, 50, "dledger_console\nweb console", fill=BLUE)
    picture.box(420, 220, 360, 120, "dledger_client\nproducers, consumers, Admin", fill=BLUE)
    picture.box(20, 356, 760, 34, "dledger_wire - formats, errors, connections", fill=ORANGE)
    return picture.render()
