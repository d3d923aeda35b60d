"""Name servers that the cluster file names only since a node was started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.config.added_name_servers import AddedNameServers
from broker.config.cluster_file import ClusterConfig

GROUPS = "groups: [{name: g0, nodes: [{id: n0, address: '127.0.0.1:10911'}]}]\n"
ADDED = "name_servers: [{id: ns0, address: '127.0.0.1:9876'}]\n"


def test_the_file_counts_as_it_is_now_and_one_with_mistakes_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: c\n" + GROUPS)
    added = AddedNameServers(ClusterConfig.load(str(file)))

    def looked(text: str | None) -> list[str]:
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        return asyncio.run(added.look())

    assert looked("cluster: c\n" + GROUPS) == []
    assert looked("cluster: other\n" + GROUPS + ADDED) == []
    assert looked("cluster: c\n" + GROUPS + ADDED) == ["127.0.0.1:9876"]
    assert looked("cluster: c\n" + GROUPS + ADDED + "broker: [") == ["127.0.0.1:9876"]
    assert looked(None) == ["127.0.0.1:9876"]
    assert looked("cluster: c\n" + GROUPS + "name_servers: []\n") == []
