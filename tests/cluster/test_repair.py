"""A byte flipped on a real disk: the node repairs itself from its peers at its start, and its files are theirs again."""

from __future__ import annotations

from tests.cluster.harness import Cluster

FLIPPED_AT = (1_000_000, 3_000_123)


def test_a_damaged_follower_repairs_itself_while_the_group_serves(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d " % n + b"y" * 5000 for n in range(1500)]
    assert cluster.produce("t", bodies)["acknowledged"] == 1500
    cluster.wait_equal()
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    cluster.kill(victim)
    sealed = min((cluster.data / victim / "commitlog").iterdir())
    sound = sealed.read_bytes()
    with open(sealed, "r+b") as file:
        for pos in FLIPPED_AT:
            file.seek(pos)
            file.write(bytes([sound[pos] ^ 0x10]))
    assert cluster.cli("verify", "--data", str(cluster.data / victim)).returncode == 1
    more = [b"more %d" % n for n in range(100)]
    assert cluster.produce("t", more)["acknowledged"] == 100
    cluster.start(victim)
    cluster.wait_healthy()
    cluster.wait_equal()
    assert "the log is whole again" in cluster.log_text(victim)
    assert sealed.read_bytes() == sound
    assert len(list((cluster.data / victim / "quarantine").iterdir())) == len(FLIPPED_AT)
    cluster.cli_ok("verify", "--online")
    assert cluster.consume("t", 1600) == bodies + more
