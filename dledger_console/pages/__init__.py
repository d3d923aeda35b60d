"""One module for each page; those of the same subject stand together."""


def load() -> None:
    """Import every module that makes pages."""
    # ruff: noqa: F401 - each makes its pages
    from dledger_console.pages import cluster, dead_letters, drills, group, groups, message, nodes, topic, topics, waiting
