"""Deliberate faults in the code under test, each one small: the simulator is worth what it finds of them.

Owns the table.  A mutation replaces one function of the product for the time of a test; ``seeds_until_found`` says how many runs it takes
until a checker, an invariant or an assertion of the product speaks up.  Numbers are those of the list of faults that implementations of
the protocol have really had (docs/contributing/simulation.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.sim.mutations import elections, leftovers, names, nodes, pressure, recovery, replication, retention, security, spares, upgrades
from tests.sim.result import FINDINGS, replay_command
from tests.sim.scenarios import run


@dataclass(frozen=True, slots=True)
class Mutation:
    """``apply`` breaks the code through a MonkeyPatch.

    ``found_by``: the scenario that has to find it within ``limit`` seeds, or the test that does (file::function).
    ``slow``: not found yet, or too late for every run of the suite; only ``python -m tests.sim.mutations`` looks.
    """

    number: str
    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    found_by: str
    limit: int = 60
    slow: bool = False
    first: int = 0  # seed to begin with, where the fault shows in few of them

    @property
    def is_simulated(self) -> bool:
        return "::" not in self.found_by

    @property
    def finder(self) -> str:
        """The scenario's or the test's name alone."""
        return self.found_by.rpartition("::")[2]


def seeds_until_found(mutation: Mutation) -> int | None:
    """1: the first seed tried found it.  None: none did within the limit.  The seed that did is clean without the fault."""
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(patch)
        found = next((seed for seed in range(mutation.first, mutation.first + mutation.limit) if _is_found(mutation.found_by, seed)), None)
    if found is None:
        return None
    control = run(mutation.found_by, found)
    assert not control.anomalies, f"without the fault too: {control.anomalies}\nreplay: {replay_command(mutation.found_by, found)}"
    return found - mutation.first + 1


def is_found_by_its_test(mutation: Mutation) -> bool:
    """Whether the test named fails, with one of its parameters at least."""
    path, _, name = mutation.found_by.partition("::")
    test = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    cases = [(value,) for value in marks[0].args[1]] if marks else [()]
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(patch)
        for case in cases:
            try:
                test(*case)
            except (*FINDINGS, pytest.fail.Exception):
                return True
    return False


def _is_found(found_by: str, seed: int) -> bool:
    """By a checker or an invariant: whatever else broken code may raise does not count."""
    try:
        return bool(run(found_by, seed).findings)
    except FINDINGS:
        return True
    except Exception:
        return False


_LATE = "tests/unit/core/test_leaf_modules.py::test_watermark_is_not_fooled_when_an_entry_comes_back"
_ACK = "tests/unit/core/test_scenarios_append.py::test_A12_an_acknowledgement_that_does_not_fit_counts_for_nothing"
_LATE_ROWS = "tests/unit/core/test_scenarios_late_signals.py"
_VOID = _LATE_ROWS + "::test_D6_a_flush_that_overlaps_a_cut_raises_nothing_that_is_gone_and_the_node_does_not_stall"
_HEARTBEAT = "tests/unit/core/test_scenarios_commit.py::test_A7_a_heartbeat_commits_nothing_in_another_log"
_SYNC = "tests/sim/test_findings.py::test_a_node_whose_disk_fails_behind_its_back_stops_without_waiting_for_the_next_write"
_UNKNOWN = "tests/unit/dledger/test_node.py::test_a_leader_cut_off_answers_unknown_and_its_entries_do_not_come_back"
_OFFER = "tests/unit/core/test_scenarios_copies.py::test_S8_an_offer_of_what_is_committed_here_is_answered_with_the_own_commit_index"
_TAIL = "tests/unit/core/test_scenarios_copies.py::test_S8_an_offer_whose_end_is_in_the_log_keeps_the_tail"
_CRASHES = "tests/unit/log/test_log_crash.py::test_power_lost_at_every_step_of_a_fixed_life"
_LEASE = "tests/unit/broker/test_role_change.py::test_services_go_off_when_no_majority_confirms_and_on_again_when_one_does"
_PAUSED = "tests/unit/dledger/test_copy.py::test_nothing_of_the_old_log_is_under_way_when_a_copy_takes_its_place"
_TAKEN = "tests/unit/dledger/test_copy.py::test_a_copy_that_would_take_acknowledged_entries_away_is_refused"

_OFFSETS = "tests/unit/client/test_whole_topics.py::test_offsets_are_those_of_the_leader_whoever_was_named_as_the_leader"
_PART = "tests/unit/client/test_whole_topics.py::test_a_producer_sends_no_key_to_a_queue_chosen_from_a_part"
_OVER = "tests/unit/nameserver/test_table.py::test_a_leader_of_a_term_that_is_over_is_not_named_again_while_the_new_one_is_not_known"
_REMOVED = "tests/unit/core/test_scenarios_membership.py::test_M15_a_removed_peer_elects_nobody_and_is_not_taken_back"

MUTATIONS = (
    # Elections, terms, membership, reads
    Mutation("1", "votes counted, not voters", elections.votes_counted_not_voters, "core-reorder"),
    Mutation("5", "the vote forgotten on stepping down in the same term", elections.vote_cleared_on_step_down, "core-swarm"),
    Mutation("5", "votes twice in a term", elections.vote_twice, "core-reorder"),
    Mutation("6, 8", "votes leave before their sync", elections.votes_leave_before_their_sync, "core-swarm"),
    Mutation("7", "vote and term saved one after the other", elections.vote_and_term_saved_one_after_the_other, "core-restarts"),
    Mutation("13", "a read index without asking the others", elections.read_without_asking_the_others, "core-swarm"),
    Mutation(
        "13",
        "any answer confirms a read",
        elections.any_answer_confirms_a_read,
        "tests/unit/core/test_scenarios_transfer_and_reads.py::test_R3_an_answer_to_an_earlier_question_confirms_no_later_read",
    ),
    Mutation(
        "13",
        "an answer to an older term keeps its round",
        elections.answer_to_an_older_term_keeps_its_round,
        "tests/unit/core/test_scenarios_transfer_and_reads.py::test_R3_an_answer_to_a_heartbeat_of_an_earlier_life_confirms_nothing_in_the_next",
    ),
    Mutation("14", "a read before the no-op is committed", elections.read_before_the_no_op, "core-handovers"),
    Mutation("15", "two changes of members in flight", elections.two_changes_in_flight, "core-swarm"),
    Mutation("16", "members changed before the no-op is committed", elections.change_before_the_no_op, "core-coups"),
    Mutation("", "two voters changed at once", elections.two_voters_changed_at_once, "core-swarm"),
    Mutation("17", "a configuration kept when it is cut", elections.configuration_kept_on_truncation, "core-coups"),
    Mutation("18", "the vote of a removed node counts", elections.removed_peers_vote_counts, _REMOVED),
    Mutation("", "data folders are not compared", elections.folders_are_not_compared, "core-folders"),
    Mutation("", "the vote of another folder counts", elections.votes_of_other_folders_count, "core-folders"),
    Mutation("19", "a learner counted in the majority", elections.learner_counted_in_quorum, "core-members"),
    Mutation("20", "a learner refuses its vote", elections.learner_refuses_its_vote, "core-promotions"),
    Mutation("28", "no pre-vote", elections.no_pre_vote, "core-swarm"),
    Mutation("29", "no check for a majority", elections.no_check_quorum, "core-swarm"),
    Mutation("30", "lower terms are not answered", elections.lower_terms_are_not_answered, "core-blackout", first=470),
    Mutation("35", "an order to campaign of an older term", elections.order_to_campaign_of_an_older_term, "core-handovers"),
    Mutation("40", "half of an even group is a majority", elections.half_of_an_even_group_is_enough, "core-swarm"),
    Mutation("", "votes of replicas that lost power count in full", elections.votes_of_suspects_count_in_full, "core-forgetting"),
    Mutation("", "a configuration is not synced under ASYNC_FLUSH", elections.configuration_not_synced, "core-async-members"),
    Mutation("", "votes without a look at the log", elections.vote_without_looking_at_the_log, "core-swarm"),
    # Log, replication, committing
    Mutation("2", "entries of older terms committed by counting", replication.older_terms_committed_by_counting, "core-swarm"),
    Mutation("3", "every append cuts", replication.every_append_cuts, "core-reorder"),
    Mutation("", "the entry before is not checked", replication.entry_before_not_checked, "core-reorder"),
    Mutation("", "a conflict is not cut", replication.conflict_not_cut, "core-reorder"),
    Mutation("4", "acknowledgements without terms", replication.acknowledgement_without_terms, _ACK),
    Mutation("8", "acknowledgements leave before the sync", replication.acknowledgements_leave_before_the_sync, "core-swarm"),
    Mutation("9", "the watermark kept when entries are cut", replication.watermark_kept_on_truncation, "core-reorder"),
    Mutation("10", "a late completion for an entry that came back", replication.late_completion_of_an_entry_that_came_back, _LATE),
    Mutation("11", "a follower commits what no request verified", replication.follower_commits_what_it_did_not_verify, "core-reorder"),
    Mutation("12", "a heartbeat commits an unverified tail", replication.heartbeat_commits_unverified_tail, "core-reorder"),
    Mutation("12", "a heartbeat commits what another log held", replication.heartbeat_commits_another_log, _HEARTBEAT),
    Mutation("31", "what a follower holds is taken back by a late answer", replication.match_may_go_down, "core-swarm"),
    Mutation("32", "a late answer frees the window", replication.late_acknowledgement_frees_the_window, "core-swarm"),
    Mutation("33", "uncommitted bytes are miscounted", replication.uncommitted_bytes_leak, "core-swarm"),
    Mutation("34", "acknowledged before it is committed", replication.acknowledged_before_commit, "core-swarm"),
    Mutation("39", "a completion of another term counts", replication.completion_of_another_term_counts, _VOID),
    Mutation("39", "the leader counts itself before its disk has it", replication.leader_counts_itself_before_its_disk, "core-swarm"),
    Mutation("40", "committed without a majority", replication.committed_without_majority, "core-swarm"),
    # Whole nodes
    Mutation("6", "term and vote are not saved", nodes.term_and_vote_not_saved, "kill-the-leader"),
    Mutation("8", "answers leave before the sync", nodes.answers_leave_before_the_sync, "blackout"),
    Mutation("25", "flush without sync", nodes.flush_without_sync, "blackout"),
    Mutation("26", "a new file's name is not synced", nodes.new_names_not_synced, "blackout"),
    Mutation("", "a cut is not written", nodes.cut_not_written, "kill-the-leader", 200),
    Mutation("37", "what producers have stored is forgotten", nodes.producers_forgotten, "kill-the-leader"),
    Mutation("", "a new master's services do not wait", nodes.services_without_waiting, "split", 100, first=130),
    Mutation("", "a master's services go on although nobody confirms it", nodes.services_without_asking, _LEASE),
    Mutation("", "services are off, and their tasks go on", nodes.tasks_of_services_go_on, "split"),
    Mutation("23", "checksums ignored on recovery", nodes.checksums_ignored_on_recovery, "rot"),
    Mutation("24", "the log cut at the first bad checksum", nodes.log_cut_at_the_first_bad_checksum, "rot"),
    Mutation("27", "an unreadable hard state taken for none", nodes.unreadable_hard_state_taken_for_none, "rot"),
    Mutation("25", "a failed sync ignored", nodes.failed_sync_ignored, _SYNC),
    Mutation("36", "stepping down reports certain failure", nodes.stepping_down_reports_failure, _UNKNOWN),
    Mutation("38", "segments cut front to back", nodes.segments_cut_front_to_back, _CRASHES),
    # Deleting heads, catching up by copy
    Mutation("", "the head deleted up to what may be cut", retention.head_deleted_up_to_what_may_be_cut, "retention"),
    Mutation("", "the head deleted without a snapshot behind it", retention.head_deleted_without_a_snapshot_behind_it, "retention"),
    Mutation("", "the head deleted without its configuration", retention.head_deleted_without_its_configuration, "retention"),
    Mutation("", "queues do not follow the log's start", retention.queues_do_not_follow, "retention"),
    Mutation("", "the log replaced without a pause", retention.log_replaced_without_a_pause, _PAUSED),
    Mutation("21", "a copy older than the commit index is wanted", replication.copy_older_than_the_commit_index_taken, _OFFER),
    Mutation("21", "a copy taken whatever is here", retention.copy_taken_whatever_is_here, _TAKEN),
    Mutation("22", "a copy drops a tail that matches", replication.copy_drops_a_tail_that_matches, _TAIL),
    Mutation("37", "a copy without the state", retention.copy_without_the_state, "retention"),
    # Held by one test each
    Mutation(
        "",
        "a cut higher up vouches for what an earlier one took",
        leftovers.fence_rises_with_a_later_cut,
        "tests/unit/core/test_leaf_modules.py::test_a_later_cut_does_not_vouch_for_what_an_earlier_one_took",
    ),
    Mutation(
        "",
        "an offer is answered by the log's length",
        leftovers.offer_answered_by_length,
        "tests/unit/core/test_scenarios_copies.py::test_S8_an_offer_that_ends_within_a_log_of_another_term_is_taken",
    ),
    Mutation(
        "",
        "tokens of reads begin at zero",
        leftovers.tokens_begin_at_zero,
        "tests/unit/core/test_scenarios_transfer_and_reads.py::test_R9_an_answer_to_a_question_of_an_earlier_life_confirms_nothing_in_the_next",
    ),
    Mutation(
        "",
        "the former folder of a learner binds it",
        leftovers.former_folder_binds_a_learner,
        "tests/unit/core/test_scenarios_membership.py::test_M21_a_late_answer_of_the_folder_before_binds_no_learner",
    ),
    Mutation(
        "",
        "a target is ordered with what is committed",
        leftovers.target_ordered_with_what_is_committed,
        "tests/unit/core/test_scenarios_transfer_and_reads.py::test_T2_a_target_that_lacks_what_is_in_flight_is_not_ordered",
    ),
    Mutation(
        "",
        "a suspect is sound by the commit index",
        leftovers.suspect_waits_for_the_commit_index,
        "tests/unit/core/test_suspects_and_members.py::test_a_suspect_is_sound_when_it_has_committed_what_its_leader_had_when_asked",
    ),
    Mutation(
        "",
        "half of the clocks is enough",
        leftovers.half_of_the_clocks_is_enough,
        "tests/unit/dledger/test_group_time.py::test_half_of_the_clocks_is_no_majority",
    ),
    Mutation(
        "",
        "the oldest start is not compared",
        leftovers.oldest_start_not_compared,
        "tests/unit/dledger/test_folder_identity.py::test_a_node_restored_twice_is_known_by_its_first_start",
    ),
    Mutation(
        "",
        "the mark goes though the stop could not sync",
        leftovers.mark_removed_though_not_synced,
        "tests/unit/dledger/test_async_flush.py::test_an_orderly_stop_that_could_not_sync_leaves_the_mark",
    ),
    Mutation(
        "",
        "a copy of a newer term is taken",
        leftovers.copy_of_a_newer_term_taken,
        "tests/unit/dledger/test_copy_limits.py::test_a_copy_of_a_newer_term_than_this_nodes_is_refused",
    ),
    Mutation(
        "",
        "old segments stay beside a copy",
        leftovers.old_segments_stay_beside_a_copy,
        "tests/unit/dledger/test_copy_limits.py::test_no_segment_of_the_old_log_stays_beside_a_copy",
    ),
    # The name service
    Mutation("", "a registration of an older term names the leader", names.older_terms_accepted, "groups", 10),
    Mutation("", "registrations never expire", names.nothing_expires, "groups", 20),
    Mutation("", "followers are believed to lead", names.followers_believed, "groups", 5),
    Mutation("", "an older registration of a node replaces a newer one", names.older_registrations_of_a_node_taken, "groups", 20),
    Mutation("", "an older table of topics replaces a newer one", names.older_tables_of_topics_taken, "groups-added", 20),
    Mutation("", "every answer is complete", names.every_answer_is_complete, "groups", 20),
    Mutation("", "complete without a majority", names.complete_without_a_majority, "groups", 20),
    Mutation("", "expired groups are forgotten, with their fence", names.expired_groups_forgotten, "groups", 20),
    Mutation("", "leaders of a term that is over are named", names.leaders_of_the_past_named, _OVER),
    Mutation("", "incomplete answers are believed by clients", names.incomplete_answers_believed, "groups", 20),
    Mutation("", "leaders are not asked whether they lead", names.leaders_are_not_asked_whether_they_lead, _OFFSETS),
    Mutation("", "a part of a topic is taken for the whole", names.parts_taken_for_the_whole, _PART),
    # Under pressure
    Mutation("", "room that was granted is not given back", pressure.room_is_never_given_back, "pressure", 10),
    Mutation("", "what is under way has no bound", pressure.the_window_is_not_looked_at, "pressure", 20),
    Mutation("", "a late request is refused and stored", pressure.late_requests_are_stored_and_refused, "pressure", 10),
    # Spare nodes
    Mutation("", "groups that replace a member do not take turns", spares.turns_ignored, "spares", 30),
    Mutation("", "a spare node forgets its group", spares.binding_not_written, "spares", 30, first=20),
    Mutation("", "a decision is remembered when the rules change", security.decisions_outlive_rules, "groups-secured", 10),
    Mutation("", "users and rules are copied into no other log", security.copies_not_written, "groups-secured", 10),
    Mutation("", "users that are not known yet are taken for nobody", security.unknown_yet_is_unknown, "groups-secured", 20),
    Mutation("", "nodes of other replica groups may replicate", security.any_node_replicates, "groups-secured", 20),
    Mutation("", "lineages of a replica group are not kept apart", recovery.lineages_mixed, "one-world:recovery"),
    Mutation("", "whoever is let in may do everything", security.everything_allowed, "one-world:security", 10),
    Mutation("", "a feature level rises before all members can do it", upgrades.levels_rise_at_once, "one-world:levels", 20),
)

# Numbers of the list that no test-only patch can bring about here: (fault, why).
NOT_APPLICABLE: dict[str, tuple[str, str]] = {}
