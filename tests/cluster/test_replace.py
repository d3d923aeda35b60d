"""A member that lost its folder comes back under its old name, by the commands of the operations page."""

from __future__ import annotations

import shutil

from tests.cluster.harness import Cluster


def test_a_lost_folder_is_replaced_by_remove_add_promote(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d" % n for n in range(500)]
    assert cluster.produce("t", bodies)["acknowledged"] == 500
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    address = next(node.address for group in cluster.config.groups for node in group.nodes if node.id == victim)
    cluster.kill(victim)
    shutil.rmtree(cluster.data / victim)
    cluster.cli_ok("member", "remove", "--id", victim, "--yes")
    cluster.start(victim, wait=False)
    cluster.cli_ok("member", "add", "--id", victim, "--address", address)
    for expected in ("", f"{victim} is a voter already: nothing was changed"):  # the second time as after an answer that was lost
        promoted = cluster.cli("member", "promote", "--id", victim, "--wait", "120", timeout_s=150)
        assert (promoted.returncode, expected in promoted.stderr) == (0, True), promoted.stderr
    mistyped = cluster.cli("member", "promote", "--id", "n9", "--wait", "120")
    assert (mistyped.returncode, "n9 is not a learner; the learners are none" in mistyped.stderr) == (1, True)
    cluster.wait_healthy()
    cluster.wait_equal()
    cluster.kill(next(node_id for node_id in cluster.local.node_ids() if node_id not in (victim, cluster.leader())))
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1
    assert cluster.consume("t", 501) == [*bodies, b"after"]
