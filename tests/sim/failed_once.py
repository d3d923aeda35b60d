"""Seeds that failed once, each with the scripted tests that fail when its mend is taken out.

A seed means another run as soon as anything draws once more or less, so it tells of its defect for weeks only.  ``OF_THE_TESTS``: the
mend changed a simulator, a plan or a checker, and nothing of the product.
"""

from __future__ import annotations

Seed = tuple[str, int]

OF_THE_TESTS: tuple[str, ...] = ()
_FINDINGS = (
    "tests/sim/test_findings.py::test_a_promise_read_after_a_kill_survives_the_loss_of_power_that_follows",
    "tests/sim/test_findings.py::test_entries_read_after_a_failed_sync_survive_the_loss_of_power_that_follows",
    "tests/sim/test_findings.py::test_a_node_whose_disk_fails_behind_its_back_stops_without_waiting_for_the_next_write",
)
_CUT_HEAD = ("tests/unit/dledger/test_copy_limits.py::test_a_log_never_begins_where_it_may_still_be_cut",)
_REPLACED = ("tests/unit/dledger/test_replace_member.py::test_M21_a_member_that_was_away_follows_a_leader_that_was_replaced_meanwhile",)
_DIALLED = (
    "tests/unit/dledger/test_replace_member.py::test_a_member_that_comes_back_follows_a_leader_that_no_configuration_in_its_log_goes_by",
)
# The commits of one day that added three seeds.
_CUT_OFF = (
    "tests/unit/dledger/test_damaged_log.py::test_K3_a_segment_that_was_cut_off_waits_for_peers_that_have_its_entries_committed",
    "tests/unit/dledger/test_damaged_log.py::test_K3_peers_with_other_folders_than_those_known_cut_nothing",
    "tests/unit/client/test_other_replicas.py::test_a_replica_that_became_a_member_since_the_last_look_is_found",
)

NODES: dict[Seed, tuple[str, ...]] = {
    ("everything", 1035): _FINDINGS,
    ("everything", 1090): _FINDINGS,
    ("everything", 1125): _FINDINGS,
    ("everything", 1160): _FINDINGS,
    ("everything", 1979): OF_THE_TESTS,
    ("split", 30): OF_THE_TESTS,
    ("everything", 1520602367): (
        "tests/unit/broker/test_schedule.py::test_the_service_begins_although_the_log_takes_no_schedule_topic_yet",
    ),
    ("everything", 876785699): OF_THE_TESTS,
    ("retention", 14): _CUT_HEAD,
    ("retention", 34): (
        "tests/unit/dledger/test_copy.py::test_a_copy_that_went_on_from_a_source_with_a_later_start_does_not_count_what_it_gave_up",
    ),
    ("retention", 108): _CUT_HEAD,
    ("members", 61): _REPLACED,
    ("members", 209): _REPLACED,
    ("offsets", 186): ("tests/unit/client/test_routes.py::test_a_call_that_may_have_been_carried_out_once_never_ends_as_certainly_failed",),
    ("recipes", 4): (
        "tests/unit/dledger/test_members.py::test_who_is_left_out_is_dialled_until_that_is_committed_since_it_may_lead_and_have_it_cut",
    ),
    ("swarm", 262866560): _CUT_OFF,
    ("swarm", 368337563): _CUT_OFF,
    ("members", 2801865439): _CUT_OFF,
    ("damage", 432621780): ("tests/unit/dledger/test_damaged_log.py::test_K3_two_segments_in_a_row_that_were_cut_off_are_made_whole",),
    ("swarm", 1687478737): _DIALLED,
    ("members", 3323060087): _DIALLED,
    ("swarm", 456363667): OF_THE_TESTS,
    ("async-blackout", 736481298): OF_THE_TESTS,
    ("swarm", 3125166097): OF_THE_TESTS,
    ("trusting", 23): (
        "tests/unit/dledger/test_damaged_log.py::test_K3_a_header_that_a_start_took_as_it_stood_does_not_stop_the_entries_behind_it",
    ),
    ("swarm", 3206647811): (
        "tests/unit/dledger/test_damaged_log.py::test_K3_where_the_index_units_are_lost_too_the_chain_says_which_entry_is_damaged",
    ),
    ("stale-copies", 7158): OF_THE_TESTS,
    ("trusting", 2038308875): ("tests/unit/dledger/test_configuration_file.py::test_an_index_unit_alone_makes_no_configuration",),
    ("spares", 3694125061): ("tests/unit/nameserver/test_table.py::test_a_group_keeps_its_turn_between_two_masters",),
    ("clocks", 2986471451): ("tests/unit/store/test_expiry.py::test_a_deletion_counts_what_went_from_the_logs_beginning_alone",),
    ("retention", 2435839787): OF_THE_TESTS,
    ("disks", 4076681385): OF_THE_TESTS,
    ("sharers", 1052692480): OF_THE_TESTS,
    ("one-world", 4285214723): (
        "tests/unit/dledger/test_async_flush.py::test_a_leader_under_SYNC_FLUSH_lets_in_who_lost_unsynced_entries_with_its_power",
    ),
}

# Of the cores' simulator itself: too strict about leaders of terms that others have left (50); too little time for a first leader where
# syncs are reported seconds late (422074505), for entries that go one by one (3054942050, 3077173338), for words of a dead leader
# (3125166084); one left dead whom a leaving leader's group needs (1295671309).  12, 128 and 123 came with the simulator's first commit.
CORES: dict[Seed, tuple[str, ...]] = {
    ("core-late-answers", 50): OF_THE_TESTS,
    ("core-promotions", 12): OF_THE_TESTS,
    ("core-promotions", 1295671309): OF_THE_TESTS,
    ("core-members", 128): OF_THE_TESTS,
    ("core-rotations", 123): OF_THE_TESTS,
    ("core-rotations", 422074505): OF_THE_TESTS,
    ("core-seclusions", 3054942050): OF_THE_TESTS,
    ("core-seclusions", 3125166084): OF_THE_TESTS,
    ("core-members", 3077173338): OF_THE_TESTS,
    ("core-folders", 4248059920): (
        "tests/unit/core/test_scenarios_membership.py::test_M21_a_late_answer_of_the_folder_before_binds_no_learner",
    ),
    ("core-folders", 1870442501): ("tests/unit/core/test_scenarios_commit.py::test_A7_a_heartbeat_commits_nothing_in_another_log",),
}
