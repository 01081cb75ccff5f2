"""The claim table: scopes of owners, and the present claims."""

import pytest

from koord.util.errors import OptionError
from koordlet.executor.claims.claim import Claim, ClaimScope, Part, Target
from koordlet.executor.claims.table import ClaimTable
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_QUOTA, CPU_SHARES

LS, BE = frozenset({"LS"}), frozenset({"BE"})


def target(name, qos="LS"):
    return Target(Level.POD, f"kubepods/{name}", qos=qos)


def shares(name, value=512, **more):
    """A claim on the shares of a pod."""
    return Claim(target=target(name), resource=CPU_SHARES, value=value, reason="because", **more)


@pytest.fixture
def table():
    table = ClaimTable()
    table.declare("A", (ClaimScope(CPU_SHARES, Level.POD, LS),))
    return table


@pytest.mark.parametrize(
    "theirs",
    [ClaimScope(CPU_SHARES, Level.POD), ClaimScope(CPU_SHARES, Level.POD, LS | BE)],
)
def test_two_owners_of_one_value_are_refused_by_name(table, theirs):
    """At declaration, before anything is claimed, and until the first one retracts its own."""
    with pytest.raises(OptionError, match=r"B may_claim: found 'value of cpu_shares.*; A is on"):
        table.declare("B", (theirs,))
    assert table.retract("A")
    assert not table.retract("A")
    table.declare("B", (theirs,))


@pytest.mark.parametrize(
    "theirs",
    [
        ClaimScope(CPU_SHARES, Level.POD, BE),
        ClaimScope(CPU_SHARES, Level.CONTAINER, LS),
        ClaimScope(CPU_QUOTA, Level.POD, LS),
    ],
)
def test_owners_of_different_values_may_live_together(table, theirs):
    """Another class of pods, level or resource is another value."""
    table.declare("B", (theirs,))


def test_parts_of_a_quota_have_an_owner_each(table):
    """Base, ratio and burst are combined; a ratio of shares is not."""
    for owner, part in (("B", Part.VALUE), ("C", Part.RATIO), ("D", Part.EXTRA)):
        table.declare(owner, (ClaimScope(CPU_QUOTA, Level.POD, LS, part),))
    with pytest.raises(OptionError, match="wanted part value of cpu_shares"):
        table.declare("E", (ClaimScope(CPU_SHARES, Level.POD, LS, Part.RATIO),))


@pytest.mark.parametrize(
    ("owner", "claim", "problem"),
    [
        ("B", shares("p1"), "declare it in may_claim"),
        ("A", shares("p1", part=Part.PIN), "declare it in may_claim"),
        (
            "A",
            Claim(target=target("p1", "BE"), resource=CPU_SHARES, value=2, reason="r"),
            "declare it in may_claim",
        ),
        ("A", Claim(target=target("p1"), resource=CPU_SHARES, value=2, reason=""), "say the rule"),
    ],
)
def test_claims_that_cannot_be_made(table, owner, claim, problem):
    """They are refused before anything changes, and the message says what to do."""
    with pytest.raises(OptionError, match=problem):
        table.check(owner, claim)


def test_a_ratio_needs_to_know_what_it_changes():
    """Without a claim on the value itself it would have nothing to divide."""
    table = ClaimTable()
    table.declare("A", (ClaimScope(CPU_QUOTA, Level.POD, part=Part.RATIO),))
    claim = Claim(target=target("p1"), resource=CPU_QUOTA, value=1.2, reason="r", part=Part.RATIO)
    with pytest.raises(OptionError, match="state the original"):
        table.check("A", claim)


def test_only_what_is_new_is_news(table):
    """The same claims again ask for nothing; what is missing from the set is taken back."""
    one, two, other = shares("p1"), shares("p2"), shares("p2", 1024)

    assert table.replace("A", "", [one, two]) == {one.key, two.key}
    assert table.replace("A", "", [shares("p1"), two]) == set()
    assert table.replace("A", "", [one, other]) == {two.key}
    assert table.replace("A", "", [other]) == {one.key}
    assert table.parts(one.key) == {}
    assert table.parts(two.key) == {Part.VALUE: other}


def test_scopes_are_replaced_apart(table):
    """A claim belongs to the scope that named it last."""
    table.replace("A", "x", [shares("p1")])
    table.replace("A", "y", [shares("p2")])
    assert table.replace("A", "y", []) == {shares("p2").key}
    assert table.size == 1

    table.replace("A", "y", [shares("p1", 7)])
    assert table.replace("A", "x", []) == set()
    assert table.drop_all("A", None) == {shares("p1").key}
    assert table.size == 0


def test_a_claim_of_another_owner_is_not_withdrawn(table):
    """Only the owner of a claim ends it."""
    table.put("A", "", shares("p1"))

    assert not table.drop("B", shares("p1").key, Part.VALUE)
    assert table.drop_all("B", None) == set()
    assert table.owners(shares("p1").key) == {Part.VALUE: "A"}
