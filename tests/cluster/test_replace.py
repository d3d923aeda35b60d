"""A member that lost its folder comes back under its old name, by the commands of the operations page."""

from __future__ import annotations

import shutil

from tests.cluster.harness import Cluster
from tests.waiting import wait_until


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


def test_a_node_whose_folder_is_deleted_ends_with_one_sentence_and_leaves_nothing(cluster: Cluster) -> None:
    """What it says is what replaces it, command by command."""
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    shutil.rmtree(cluster.data / victim, ignore_errors=True)
    assert cluster.produce("t", [b"before"])["acknowledged"] == 1
    gone = f"dledger: data folder {cluster.data / victim} is gone: it was deleted or moved while {victim} ran; "
    last = str(wait_until(lambda: last_line(cluster, victim, gone), lambda: cluster.log_text(victim)))
    cluster.kill(victim)  # it has ended
    assert not (cluster.data / victim).exists()
    cluster.start(victim, wait=False)
    steps = f"member remove --id {victim} --yes", f"member add --id {victim}", f"member promote --id {victim} --wait 600"
    note = wait_until(lambda: refused(cluster, victim), lambda: cluster.log_text(victim))
    for step in steps:
        assert f"dledger {step}" in last
        assert f"dledger {step}" in str(note)
        cluster.cli_ok(*step.split(), timeout_s=150)
    cluster.wait_healthy()
    cluster.wait_equal()


def last_line(cluster: Cluster, node_id: str, begin: str) -> str:
    """The last line of the log if it begins so."""
    line = (cluster.log_text(node_id).splitlines() or [""])[-1]
    return line if line.startswith(begin) else ""


def refused(cluster: Cluster, node_id: str) -> str:
    """What ``dledger status`` says of a node that its peers refuse; empty as long as they do not."""
    lines = cluster.cli("status").stdout.splitlines()
    return next((line for line in lines if f"{node_id} " in line and "refused by its peers" in line), "")
