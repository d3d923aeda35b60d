"""What is in force between two machines when several faults want something of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dledger_drill.hosts.machine import LinkShape
from dledger_drill.hosts.shared_links import SharedLinks


class Links:
    """``now``: what each direction does; those that carry as they came are not in it."""

    def __init__(self) -> None:
        self.now: dict[tuple[str, str], dict[str, Any]] = {}
        self.dropped = 0

    def cut(self, source: str, target: str) -> None:
        raise AssertionError("the shape says whether it is cut")

    def isolate(self, name: str, others: Any) -> None:
        raise AssertionError("each direction is told by itself")

    def shape(self, source: str, target: str, shape: LinkShape) -> None:
        self.now[source, target] = {name: value for name, value in asdict(shape).items() if value}

    def restore(self, source: str, target: str) -> None:
        self.now.pop((source, target), None)

    def struck(self, source: str, target: str) -> int:
        return self.dropped

    def heal(self) -> None:
        raise AssertionError("nothing is taken back that another fault did")


def test_the_worst_of_all_wishes_is_in_force() -> None:
    links = Links()
    shared = SharedLinks(links)
    slow, lossy, apart = shared.hold(), shared.hold(), shared.hold()
    slow.shape("a", "b", LinkShape(delay_ms=200.0, bytes_per_s=1000.0))
    lossy.shape("a", "b", LinkShape(loss=0.2, delay_ms=50.0, bytes_per_s=2000.0))
    assert links.now == {("a", "b"): {"loss": 0.2, "delay_ms": 200.0, "bytes_per_s": 1000.0}}
    apart.isolate("a", ["b"])
    assert links.now == {("a", "b"): {"cut": True}, ("b", "a"): {"cut": True}}
    slow.heal()
    assert links.now["a", "b"] == {"cut": True}
    apart.heal()
    assert links.now == {("a", "b"): {"loss": 0.2, "delay_ms": 50.0, "bytes_per_s": 2000.0}}
    lossy.heal()
    lossy.heal()
    assert links.now == {}


def test_a_fault_takes_a_part_back() -> None:
    links = Links()
    held = SharedLinks(links).hold()
    held.isolate("a", ["b", "c"])
    held.restore("a", "b")
    assert set(links.now) == {("b", "a"), ("a", "c"), ("c", "a")}


def test_a_fault_knows_whether_something_came_of_it() -> None:
    links = Links()
    links.dropped = 7  # by faults before
    held = SharedLinks(links).hold()
    held.cut("a", "b")
    assert held.without_effect == "nothing was sent over these links meanwhile"
    links.dropped = 8
    assert held.without_effect == ""
