"""What the pages of a session share, so that several of them ask the cluster once; and the page of a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from dledger_client.admin.calls import Listed
from dledger_console.data.cluster import ClusterSamplers
from dledger_console.data.topic_history import TopicRates, look_at_topics
from dledger_console.history.sampler import Sampler
from dledger_console.layout.parts import Missing
from dledger_console.layout.tables import BoundedTable, Cell, Column
from dledger_console.layout.view import View

TOPICS_S = 5.0
LIST_S = 4.0
Each = TypeVar("Each")


async def list_page(
    view: View,
    poll: Callable[[], Awaitable[Listed[Each]]],
    columns: Sequence[Column],
    cells: Callable[[Each], Mapping[str, Cell]],
    *,
    label: str,
    empty: str,
) -> None:
    """A page that is one table: a row of ``cells`` for each row of the newest answer.

    ``poll`` asks for all pages of the session with this ``label``, so it may not hold on to the page that was opened first.
    """
    sampler: Sampler[Listed[Each]] = view.session.keep(label, lambda: Sampler(poll, interval_s=LIST_S))
    missing = Missing()
    table = BoundedTable(columns, key="key", search=True, empty=empty, label=label)

    def show() -> None:
        if sampler.newest is not None:
            table.set_rows([cells(row) for row in sampler.newest])
            missing.show(sampler.newest.unanswered, read_at=sampler.newest.read_at)

    await view.follow(sampler, show)


class WatchedTopics:
    """All topics as one user watches them.

    Attributes:
        oldest: By topic: when its oldest message was looked up (monotonic seconds), and when that one was stored; None: it has none.
    """

    def __init__(self, view: View) -> None:
        admin = view.admin
        self.rates = TopicRates()
        self.sampler = Sampler(lambda: look_at_topics(admin), self.rates.take, TOPICS_S)
        self.oldest: dict[str, tuple[float, int | None]] = {}

    def forget_deleted(self) -> None:
        """Keep nothing of topics that are not there any more."""
        if self.sampler.newest is not None:
            for name in self.oldest.keys() - self.sampler.newest.ranges.keys():
                del self.oldest[name]

    def close(self) -> None:
        """The session has ended."""
        self.sampler.close()


def watched_topics(view: View) -> WatchedTopics:
    """Of the user of this page."""
    return view.session.keep("topics", lambda: WatchedTopics(view))


def cluster_samplers(view: View) -> ClusterSamplers:
    """What sees the cluster for all pages of this user."""
    return view.session.keep("cluster", lambda: ClusterSamplers(view.admin))
