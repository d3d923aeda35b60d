"""The pictures of the documentation, drawn by code so that words in them can be changed as easily as words in a page."""

from __future__ import annotations

import json
from pathlib import Path

from svg import BLUE, GREEN, GREY, ORANGE, RED, Canvas, Note, Say, sequence, terminal

OVERLOAD = Path(__file__).with_name("overload.json")
QUICKSTART_TEXT = Path(__file__).with_name("quickstart.txt")


def all_pictures() -> dict[str, str]:
    """SVG by file name."""
    return {
        "replica-group.svg": replica_group(),
        "write.svg": write(),
        "read.svg": read(),
        "failover.svg": failover(),
        "storage.svg": storage(),
        "routing.svg": routing(),
        "consumer-group.svg": consumer_group(),
        "retry.svg": retry(),
        "transaction.svg": transaction(),
        "layers.svg": layers(),
        "overload.svg": overload(),
        "quickstart.svg": terminal("Output of scripts/quickstart", QUICKSTART_TEXT.read_text(encoding="utf-8"), "./scripts/quickstart"),
    }


def overload() -> str:
    """What ``dledger bench overload --json`` printed, as bars: stored at each load, of what was stored at most."""
    steps = json.loads(OVERLOAD.read_text(encoding="utf-8"))["steps"]
    picture = Canvas(316, "What a cluster stores when it is offered 0.2 to 5 times what it can")
    picture.text(180, 24, "stored, MB/s", bold=True)
    picture.text(180, 306, "offered, times the capacity; p99; refused")
    for number, step in enumerate(steps):
        x, height = 8 + number * 70, 150 * step["goodput_share"]
        picture.box(x, 210 - height, 62, height, fill=GREEN if step["load"] <= 1 else ORANGE)
        picture.text(x + 31, 204 - height, f"{step['goodput_per_s'] / 1e6:.0f}")
        for line, text in enumerate((f"× {step['load']:g}", _short(step["p99_ms"]), f"{step['refused_share']:.0%}")):
            picture.text(x + 31, 234 + 22 * line, text)
    return picture.render()


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def replica_group() -> str:
    picture = Canvas(330, "A replica group: one leader, two followers, producers and consumers")
    picture.box(110, 8, 140, 36, "Producer", fill=GREY)
    picture.arrow(180, 46, 180, 98)
    picture.text(180, 78, "send", over=True)
    picture.box(90, 100, 180, 52, "Node n0\nleader", fill=GREEN)
    for x, name in ((8, "n1"), (196, "n2")):
        picture.arrow(130 if x == 8 else 230, 154, x + 78, 206)
        picture.box(x, 208, 156, 52, f"Node {name}\nfollower")
    picture.text(180, 186, "log entries", over=True)
    picture.box(60, 288, 240, 36, "Consumer, Spark task", fill=GREY)
    picture.arrow(140, 286, 100, 262)
    picture.arrow(220, 286, 260, 262)
    picture.text(180, 281, "read", over=True)
    return picture.render()


def write() -> str:
    return sequence(
        "A write: the producer gets its result after a majority has stored the batch",
        ["Client", "Leader\nn0", "Node\nn1", "Node\nn2"],
        [
            Say(0, 1, "batch of messages"),
            Note(1, "check, assign offsets,\nappend to the log"),
            Say(1, 2, "log entry"),
            Say(1, 3, "log entry"),
            Note(1, "sync"),
            Note(2, "append, sync"),
            Say(2, 1, "acknowledged", dashed=True),
            Note(1, "committed: 2 of 3 have it", GREEN),
            Say(1, 0, "SEND_OK, queue offsets", dashed=True),
            Note(3, "append, sync"),
            Say(3, 1, "acknowledged", dashed=True),
        ],
    )


def read() -> str:
    return sequence(
        "A read from a follower, with and without linearizable=True",
        ["Client", "Node\nn1", "Leader\nn0", "Node\nn2"],
        [
            Say(0, 1, "fetch from offset 42"),
            Say(1, 0, "committed messages", dashed=True),
            Note(0, "with linearizable=True:", ORANGE),
            Say(0, 1, "fetch from offset 42"),
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
        ["Client", "Leader\nn0", "Node\nn1", "Node\nn2"],
        [
            Say(0, 1, "batch, sequence 7"),
            Say(1, 2, "log entry"),
            Note(1, "killed before it answers", RED),
            Note(2, "connection to n0 lost"),
            Say(2, 3, "pre-vote, vote for term 5"),
            Say(3, 2, "granted", dashed=True),
            Note(2, "n1 is leader of term 5", GREEN),
            Say(0, 2, "batch, sequence 7 again"),
            Note(2, "sequence 7 is in the log"),
            Say(2, 0, "SEND_OK, first copy's offset", dashed=True),
            Note(1, "restarts, follows, catches up", BLUE),
        ],
    )


def storage() -> str:
    picture = Canvas(478, "Files of a node: one log, and queues and indexes that point into it")
    picture.text(8, 24, "commitlog/", anchor="start", bold=True)
    entries = (
        ("orders q0\n#0 #1", BLUE),
        ("payments q1\n#0", ORANGE),
        ("orders q1\n#0", GREEN),
        ("orders q0\n#2", BLUE),
        ("command\ncommit offset", GREY),
        ("payments q1\n#1", ORANGE),
    )
    for number, (text, fill) in enumerate(entries):
        picture.box(8, 36 + number * 64, 160, 54, text, fill=fill)
    picture.text(352, 24, "consumequeue/", anchor="end", bold=True)
    for top, name, fill, targets in ((36, "orders/0", BLUE, (55, 70, 255)), (196, "payments/1", ORANGE, (127, 383))):
        picture.text(352, top + 18, name, anchor="end")
        for number, target in enumerate(targets):
            picture.box(272, top + 28 + number * 38, 80, 30, f"#{number}", fill=fill)
            picture.arrow(270, top + 43 + number * 38, 171, target)
    picture.text(352, 336, "index/", anchor="end", bold=True)
    picture.box(232, 346, 120, 34, "key o-1", fill=GREY)
    picture.arrow(230, 358, 171, 268, dashed=True)
    picture.text(8, 442, "config/", anchor="start", bold=True)
    picture.text(8, 464, "snapshots of replicated state", anchor="start")
    return picture.render()


def routing() -> str:
    picture = Canvas(318, "Nodes register with name servers; clients look topics up there and then talk to leaders")
    picture.box(80, 8, 200, 52, "Name servers\ntopics, leaders", fill=ORANGE)
    picture.box(8, 146, 110, 44, "Client", fill=GREY)
    picture.arrow(70, 144, 126, 62)
    picture.text(66, 104, "look up, watch", over=True)
    for y, name in ((146, "g0"), (250, "g1")):
        picture.box(192, y, 160, 56, f"Group {name}\nleader, followers", fill=GREEN)
    picture.arrow(272, 144, 236, 62, dashed=True)
    picture.line(342, 250, 342, 204)
    picture.text(290, 104, "register", over=True)
    picture.arrow(120, 168, 190, 168)
    picture.arrow(100, 192, 190, 268)
    picture.text(96, 240, "send, read", over=True)
    return picture.render()


def consumer_group() -> str:
    picture = Canvas(424, "A consumer group: each queue belongs to one consumer, and the cluster keeps its offset")
    picture.text(8, 22, "topic orders", anchor="start", bold=True)
    picture.text(352, 22, "group audit", anchor="end", bold=True)
    for number, (target, offset) in enumerate(((98, 42), (98, 17), (258, 63), (258, 8))):
        y = 36 + number * 80
        picture.box(8, y, 150, 62, f"queue {number}\noffset {offset}", fill=BLUE)
        picture.arrow(160, y + 22, 226, target)
        picture.arrow(226, target + 18, 160, y + 44, dashed=True)
    for y, name in ((82, "A"), (242, "B")):
        picture.box(228, y, 124, 52, f"consumer {name}", fill=GREEN)
    picture.arrow(8, 374, 48, 374)
    picture.text(58, 380, "messages", anchor="start")
    picture.arrow(48, 404, 8, 404, dashed=True)
    picture.text(58, 410, "committed offset", anchor="start")
    return picture.render()


def retry() -> str:
    picture = Canvas(356, "Retry: from the topic to the retry topic, and after 16 retries to the dead letters")
    picture.box(90, 8, 180, 40, "topic orders", fill=BLUE)
    picture.arrow(180, 50, 180, 98)
    picture.text(180, 80, "deliver", over=True)
    picture.box(90, 100, 180, 40, "listener", fill=GREEN)
    picture.arrow(120, 142, 70, 210)
    picture.text(64, 168, "fails", over=True)
    picture.arrow(110, 210, 160, 142, dashed=True)
    picture.text(152, 192, "again, up to 16 times", anchor="middle", over=True)
    picture.arrow(240, 142, 284, 210)
    picture.text(300, 168, "last attempt", over=True)
    picture.box(8, 212, 160, 54, "%RETRY%audit\n10 s ... 2 h", fill=ORANGE)
    picture.box(192, 212, 160, 54, "%DLQ%audit\ndead letters", fill=RED)
    picture.arrow(272, 268, 272, 312)
    picture.text(180, 330, "dledger dlq redrive: back to the topic", over=True)
    return picture.render()


def transaction() -> str:
    return sequence(
        "A transaction: consumers see the message after the commit",
        ["Your\ncode", "Pro-\nducer", "Leader", "Con-\nsumer"],
        [
            Say(0, 1, "send_in_transaction"),
            Say(1, 2, "half message"),
            Note(2, "stored, not visible"),
            Say(1, 0, "run the local transaction"),
            Say(0, 1, "COMMIT", dashed=True),
            Say(1, 2, "commit"),
            Note(2, "published in one log entry", GREEN),
            Say(2, 3, "message"),
            Note(1, "no answer, or the producer died:", ORANGE),
            Say(2, 1, "check: committed?"),
            Say(1, 2, "COMMIT or ROLLBACK", dashed=True),
        ],
    )


def layers() -> str:
    picture = Canvas(508, "Packages and the direction of their imports")
    picture.box(8, 8, 344, 58, "dledger_drill\nfaults, checks, benches", fill=GREY)
    picture.box(8, 80, 344, 58, "dledger_cli\ncommand line", fill=GREY)
    picture.box(8, 152, 344, 58, "dledger_offline\nbackup, recovery", fill=GREY)
    rows = (
        ("broker\nservices", GREEN, "dledger_console\nweb console", BLUE),
        ("store\nqueues, state", GREEN, "pyspark_dledger\nSpark", BLUE),
        ("dledger\nRaft, log", GREEN, "dledger_client\nclients, Admin", BLUE),
    )
    for number, (left, left_fill, right, right_fill) in enumerate(rows):
        y = 224 + number * 72
        picture.box(8, y, 166, 58, left, fill=left_fill)
        picture.box(186, y, 166, 58, right, fill=right_fill)
    picture.box(8, 440, 344, 58, "dledger_wire\nformats, errors, connections", fill=ORANGE)
    return picture.render()
