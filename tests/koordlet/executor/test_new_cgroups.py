"""Values that a runtime sets for us are in the journal before their cgroup is made."""

import contextlib

import pytest

from koordlet.executor.claims.claim import ClaimState, InitialValue, Key, Target
from koordlet.executor.kernel.writer import CLAIM_TIMEOUT, RUNTIME_TIMEOUT
from koordlet.host.resource import Level
from tests.support.node.model_tree import (
    CPUS,
    QUOTA,
    SHARES,
    Died,
    ModelTree,
    Mortal,
    desired,
    release,
)

NEW = "be/pod1/new"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(request, tmp_path):
    return ModelTree(tmp_path / "host", request.param)


def expected(resource, value, original, place=NEW, level=Level.CONTAINER, *, runs=False):
    key = Key(Target(level, place), resource)
    return InitialValue(key=key, value=value, original=original, owners=("Some",), runs=runs)


def container(resource, value):
    return desired(resource, NEW, value)._replace(key=Key(Target(Level.CONTAINER, NEW), resource))


def made_with(tree, resource, text):
    """The runtime makes the cgroup with that value."""
    tree.add(NEW)
    tree.foreign(resource, NEW, text)


def test_what_the_runtime_was_asked_for_is_restored(tree):
    """The claim that follows finds its value in force, and is not taken for another agent's."""
    writer = tree.writer()
    assert writer.expect([expected(QUOTA, 50_000, 20_000)]) == [""]
    made_with(tree, QUOTA, "50000")

    [applied] = writer.apply([container(QUOTA, 50_000)])
    assert (applied.state, applied.wrote, applied.original) == (ClaimState.IN_FORCE, False, 20_000)
    [back] = writer.apply([release(QUOTA, NEW)])

    assert back.wrote
    assert tree.read(QUOTA, NEW) == "20000"


def test_the_runtime_does_not_wait_for_the_disk(tree):
    """The record outlives the process, and a reboot takes the container along with it."""
    steps = []
    tree.writer(steps.append).expect([expected(QUOTA, 50_000, 20_000)])
    assert "journal appended" in steps
    assert "journal synced" not in steps


def test_a_value_that_the_runtime_rounds_is_ours_too(tree):
    """Runtimes compute the weight of v2 by another formula than the kubelet's."""
    writer = tree.writer()
    writer.expect([expected(SHARES, 1024, 2)])
    made_with(tree, SHARES, "70")

    [applied] = writer.apply([container(SHARES, 1024)])
    assert (applied.state, applied.wrote, applied.foreign_change) == (ClaimState.IN_FORCE, True, "")
    writer.apply([release(SHARES, NEW)])

    assert tree.read(SHARES, NEW) == {1: "2", 2: "1"}[tree.version]


def test_a_killed_agent_restores_from_the_journal_alone(tree):
    """Killed after the response, before anything claims the value."""
    tree.writer().expect([expected(QUOTA, 50_000, 20_000)])
    made_with(tree, QUOTA, "50000")
    writer = tree.writer()

    assert not writer.unclaimed()  # for now: a plugin may claim it again
    writer.restore(list(writer.ledger), at_once=True)

    assert tree.read(QUOTA, NEW) == "20000"
    assert not list(writer.ledger)


def test_a_killed_agent_that_comes_again_goes_on(tree):
    tree.writer().expect([expected(QUOTA, 50_000, 20_000)])
    made_with(tree, QUOTA, "50000")

    [applied] = tree.writer().apply([container(QUOTA, 50_000)])

    assert (applied.state, applied.wrote, applied.original) == (ClaimState.IN_FORCE, False, 20_000)


def test_what_nobody_claims_is_restored_after_a_while(tree):
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, -1)])
    made_with(tree, QUOTA, "50000")
    assert not writer.unclaimed()

    tree.clock.tick(CLAIM_TIMEOUT)
    writer.restore(writer.unclaimed())

    assert tree.read(QUOTA, NEW) == {1: "-1", 2: "max"}[tree.version]
    assert not list(writer.ledger)


def test_a_container_that_is_never_made_is_forgotten(tree):
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, -1)])
    writer.restore(list(writer.ledger))
    assert list(writer.ledger)  # the runtime may still be about to

    tree.clock.tick(CLAIM_TIMEOUT)
    writer.restore(writer.unclaimed())

    assert not list(writer.ledger)


@pytest.mark.parametrize("record", [QUOTA, CPUS])
def test_a_container_whose_pod_is_gone_is_forgotten_at_once(tree, record):
    """It has lived too shortly for a claim, or was never made; nothing can be made there."""
    writer = tree.writer()
    value = {QUOTA: 50_000, CPUS: frozenset({1})}[record]
    writer.expect([expected(record, value, {QUOTA: -1, CPUS: frozenset()}[record])])
    tree.remove("be/pod1")

    writer.restore(list(writer.ledger))

    assert not list(writer.ledger)


def test_a_value_that_the_runtime_is_about_to_set_is_waited_for(tree):
    """The group is there before its values: what it has at first is not the end of it."""
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, -1)])
    assert writer.awaited()
    tree.add(NEW)
    writer.restore(list(writer.ledger))
    assert writer.awaited()

    tree.foreign(QUOTA, NEW, "50000")
    writer.restore(list(writer.ledger))

    assert tree.read(QUOTA, NEW) == {1: "-1", 2: "max"}[tree.version]
    assert not list(writer.ledger)
    assert not writer.awaited()


def test_a_runtime_is_not_waited_for_longer_than_it_takes(tree):
    """Then the record stays for the next process, or is over where the group has another value."""
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, -1)])
    tree.clock.tick(RUNTIME_TIMEOUT)
    assert not writer.awaited()
    assert list(writer.ledger)
    tree.add(NEW)

    writer.restore(list(writer.ledger))

    assert not list(writer.ledger)


def test_cpus_that_nobody_asked_for_are_those_of_the_pod(tree):
    """On v1 a runtime copies them; on v2 a group without CPUs of its own has those above."""
    writer = tree.writer()
    assert writer.expect([expected(CPUS, frozenset({1}), frozenset())]) == [""]
    made_with(tree, CPUS, "1")

    writer.apply([container(CPUS, frozenset({1}))])
    writer.apply([release(CPUS, NEW)])

    assert tree.read(CPUS, NEW) == (tree.read(CPUS, "be/pod1") if tree.version == 1 else "")


def test_an_update_of_the_runtime_changes_what_is_restored(tree):
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, 20_000)])
    made_with(tree, QUOTA, "50000")
    writer.apply([container(QUOTA, 50_000)])

    writer.expect([expected(QUOTA, 50_000, 30_000)])
    writer.apply([release(QUOTA, NEW)])

    assert tree.read(QUOTA, NEW) == "30000"


def test_what_a_runtime_has_for_a_container_that_runs_may_be_ours(tree):
    """It keeps what it was answered: after a restore it says so still, the kernel does not."""
    made_with(tree, QUOTA, "20000")
    writer = tree.writer()
    writer.expect([expected(QUOTA, 60_000, 50_000, runs=True)])
    tree.foreign(QUOTA, NEW, "60000")
    writer.apply([container(QUOTA, 60_000)])

    writer.expect([expected(QUOTA, 70_000, 60_000, runs=True)])
    tree.foreign(QUOTA, NEW, "70000")
    writer.apply([release(QUOTA, NEW)])

    assert tree.read(QUOTA, NEW) == "20000"


def test_an_update_that_comes_after_the_restore_is_restored_too(tree):
    """A busy runtime takes its time with what it was answered about a container that runs."""
    made_with(tree, QUOTA, "20000")
    writer = tree.writer()
    writer.apply([container(QUOTA, 50_000)])
    writer.expect([expected(QUOTA, 50_000, 20_000)])
    writer.restore(list(writer.ledger))
    assert tree.read(QUOTA, NEW) == "20000"
    assert writer.awaited()

    tree.foreign(QUOTA, NEW, "50000")
    writer.restore(writer.awaited())
    assert tree.read(QUOTA, NEW) == "20000"
    tree.clock.tick(RUNTIME_TIMEOUT)
    assert not writer.awaited()
    writer.restore(writer.unclaimed())

    assert not list(writer.ledger)


def test_a_new_container_with_its_value_is_waited_for_no_longer(tree):
    """The runtime sets the values of a group once when it makes it."""
    writer = tree.writer()
    writer.expect([expected(QUOTA, 50_000, -1)])
    made_with(tree, QUOTA, "50000")
    writer.apply([container(QUOTA, 50_000)])

    writer.restore(list(writer.ledger))

    assert not writer.awaited()
    assert not list(writer.ledger)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (expected(SHARES, 1, 2), "found"),
        (expected(SHARES, 1024, 1), "found"),
        (expected(QUOTA, 50_000, -1, "../../etc"), "not below the root"),
        (expected(QUOTA, 50_000, -1, "be/pod1", Level.POD), "not of a container"),
    ],
)
def test_what_could_not_be_restored_is_refused(tree, one, why):
    """Then the runtime is not asked to set it; the others are."""
    writer = tree.writer()

    refused, good = writer.expect([one, expected(QUOTA, 50_000, -1)])

    assert why in refused
    assert not good
    assert len(list(writer.ledger)) == 1


@pytest.mark.parametrize("at", range(1, 4))
def test_killed_while_it_records(tree, at):
    """Either the record is whole or there is none; the runtime has no response then."""
    with contextlib.suppress(Died):
        tree.writer(Mortal(at)).expect([expected(QUOTA, 50_000, -1)])

    assert len(list(tree.writer().ledger)) <= 1
