"""A store whose log and state are replaced by another replica's: what it shows and tells meanwhile, and has afterwards."""

from __future__ import annotations

from broker.security.admission import ClusterAdmission
from dledger_wire.security import principal
from dledger_wire.security.scram import secret_verifier
from store.commands.consumer_groups import PutSubscriptionGroup
from store.commands.security import Action, ChangeRules, Effect, PutUser, Resource, Rule, User
from store.settings import StoreSettings
from store.state.state_machine import CommandContext
from store.state.store_state import StoreState
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, run

ALICE = principal.user("alice")
READ_ORDERS = Rule("alice", Effect.ALLOW, Resource.TOPIC, "orders", Action.READ)


def test_users_stay_while_a_copy_is_installed_and_are_those_of_the_copy_afterwards() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        security = rig.store.security
        admission = ClusterAdmission("shop", administrators={}, secret=None, users_required=True, users=lambda: security)
        ended: list[str] = []
        told: list[list[str]] = []
        await rig.topic("orders")
        await rig.command(PutUser(user=User("alice", secret_verifier("a" * 8))))
        await rig.command(ChangeRules(added=(READ_ORDERS,)))
        copied = rig.store.applied_index
        assert await rig.save()
        await rig.command(PutUser(user=User("bob", secret_verifier("b" * 8))))
        await rig.command(PutSubscriptionGroup(groupName="g", retryMaxTimes=3))
        for who in (ALICE, principal.user("bob")):
            admission.watch(who, lambda error: ended.append(error.message))
        security.on_change(admission.users_changed)
        security.on_change(lambda: told.append([user.name for user in security.users()]))

        await rig.store.suspend()
        assert (ended, told) == ([], [])
        assert admission.verifier_of("alice") is not None
        assert security.allowed("alice", Action.READ, Resource.TOPIC, "orders")
        assert rig.store.topics.get("orders") is not None

        await rig.store.recover(rig.log)
        assert rig.store.applied_index == copied
        assert (ended, told) == (["user bob was deleted"], [["alice"]])
        assert rig.store.subscription_groups.of("g").retryMaxTimes == 16
        await rig.apply(rig.log.last.index)
        assert ([user.name for user in security.users()], ended) == (["alice", "bob"], ["user bob was deleted"])
        assert rig.store.subscription_groups.of("g").retryMaxTimes == 3
        await rig.close()

    run(scenario)


def test_what_a_copy_lacks_is_as_it_was_made() -> None:
    state, fresh = (StoreState(StoreSettings(), lambda _queue: 0) for _ in range(2))
    for index, command in enumerate((PutUser(user=User("alice")), PutSubscriptionGroup(groupName="g", retryMaxTimes=3))):
        assert state.machine.apply(command, CommandContext(index, 1, index, index)).error is None
    users = state.security.dump()
    state.machine.load({state.security.file_name: users})
    assert state.machine.capture()[state.security.file_name] == users
    assert state.subscription_groups.dump() == fresh.subscription_groups.dump()
    state.machine.load({})
    assert state.security.dump() == fresh.security.dump()
