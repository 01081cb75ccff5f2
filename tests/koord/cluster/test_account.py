"""The account: sums of what pods hold, in any order of events, and in what-ifs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.cluster import pools as pools_module
from koord.cluster.account import MAX_AMOUNTS, Account, AccountKind, FrozenAccount
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.pools import EMPTY_POOL, Holding, Pool
from koord.cluster.state import Snapshot
from tests.support.clusters import finished, node, pod, read_node, read_pod


def team(one: ClusterPod) -> Sequence[Holding]:
    """A pool for each value of a label."""
    name = one.labels.get("team")
    return (Holding(name, one.spec.requests),) if name else ()


def cards(one: ClusterPod) -> Sequence[Holding]:
    """A pool for each node; the cards are in a label."""
    found = one.labels.get("cards", "")
    if not found or not one.node:
        return ()
    return (Holding(one.node, tuple((card, 1) for card in found.split("-"))),)


TEAM = AccountKind("team", team, members=True)
CARDS = AccountKind("cards", cards)


def held(name: str, node: str = "", cpu: str = "1", **labels: str) -> ClusterPod:
    return read_pod(pod(name, node, labels, {"cpu": cpu}))


def contents(account: FrozenAccount) -> Mapping[str, Mapping[str, object]]:
    """All sums, for comparison with others."""
    found: dict[str, dict[str, object]] = {}
    for kind in (TEAM, CARDS):
        names = account.other_pools(kind, None)
        found[kind.name] = {name: account.pool(kind, name) for name in names}
    return found


def computed(pods: Mapping[str, ClusterPod]) -> Mapping[str, Mapping[str, object]]:
    """The sums as the pods say them."""
    found: dict[str, dict[str, object]] = {}
    for kind in (TEAM, CARDS):
        pools: dict[str, list[tuple[ClusterPod, Holding]]] = {}
        for one in pods.values():
            for holding in () if one.finished else kind.holdings(one):
                pools.setdefault(holding.pool, []).append((one, holding))
        found[kind.name] = {name: _pool(kind, each) for name, each in pools.items()}
    return found


def _pool(kind: AccountKind, each: Sequence[tuple[ClusterPod, Holding]]) -> Pool:
    allocated: Counter[str] = Counter()
    requested: Counter[str] = Counter()
    for one, holding in each:
        requested.update(dict(holding.amounts))
        allocated.update(dict(holding.amounts) if one.node else {})
    members = {one.key: one.node for one, _ in each} if kind.members else {}
    return Pool(dict(+allocated), dict(+requested), len(each), members)


PODS = st.builds(
    lambda name, node, cpu, team, cards, over: read_pod(
        (finished if over else dict)(
            pod(name, node, {"team": team, "cards": cards}, {"cpu": str(cpu)})
        )
    ),
    st.sampled_from("pqrs"),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 3),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "0", "1", "0-1"]),
    st.booleans(),
)
EVENTS = st.lists(st.one_of(PODS, st.sampled_from(["default/p", "default/q", "default/z"])))


def happen(account: Account, pods: dict[str, ClusterPod], event: ClusterPod | str) -> None:
    """Let a pod come or change, or the one of a key go."""
    if isinstance(event, str):
        account.remove(event)
        pods.pop(event, None)
    else:
        account.put(event)
        pods[event.key] = event


@given(EVENTS, st.integers(1, 4))
def test_after_any_events_the_sums_are_those_of_the_pods_that_are_left(events, every):
    account, pods = Account([TEAM, CARDS]), {}
    last = account.freeze()
    for number, event in enumerate(events):
        happen(account, pods, event)
        if number % every == 0:
            found = account.freeze()
            for kind in (TEAM, CARDS):
                changed = set(found.other_pools(kind, last))
                before, now = computed_pools(last, kind), computed_pools(found, kind)
                differ = {
                    name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
                }
                assert changed >= differ
                assert not (found.has_pools_of(last, kind) and changed)
            last = found

    assert contents(account.freeze()) == computed(pods)


@given(EVENTS, st.integers(0, 3), st.integers(1, 5), st.data())
def test_an_account_is_that_of_its_moment_whenever_somebody_looks_into_it(
    events, unasked, waiting, data
):
    """Also if changes of pools that nobody asks for are not summed until many wait."""
    with mock.patch.multiple(pools_module, UNASKED=unasked, MAX_WAITING=waiting):
        account, pods = Account([TEAM, CARDS]), dict[str, ClusterPod]()
        kept = [(account.freeze(), dict(pods))]
        for event in events:
            happen(account, pods, event)
            kept.append((account.freeze(), dict(pods)))
            if data.draw(st.booleans(), "look at one"):
                found, then = kept.pop(data.draw(st.integers(0, len(kept) - 1)))
                assert contents(found) == computed(then)
        for found, then in data.draw(st.permutations(kept)):
            assert contents(found) == computed(then)


def test_pools_that_nobody_asks_for_are_summed_however_many_changes_wait() -> None:
    account = Account([TEAM])
    before = account.freeze()
    count = pools_module.UNASKED + 3 * pools_module.MAX_WAITING + 1
    for number in range(count):
        account.put(held(f"p{number}", "a", team="x"))
        last = account.freeze()

    assert last.pool(TEAM, "x").allocated == {"cpu": 1000 * count}
    assert list(last.other_pools(TEAM, before)) == ["x"]
    assert before.pool(TEAM, "x") is EMPTY_POOL


def test_a_kind_of_labels_and_spec_is_not_asked_again_when_a_pod_comes_to_a_node() -> None:
    asked = []

    def noted(one: ClusterPod) -> Sequence[Holding]:
        asked.append(one.node)
        return team(one)

    kind = AccountKind("noted", noted, of_spec=True)
    account, one = Account([kind]), held("p", team="x")
    account.put(one)
    account.put(replace(one, node="a"))
    account.put(replace(one, node="a", phase="Unknown"))  # its end may have come
    account.put(replace(one, node="b", phase="Unknown", annotations=(("a", "b"),)))

    assert asked == ["", "a", "b"]
    assert account.freeze().pool(kind, "x").allocated == {"cpu": 1000}
    account.put(replace(one, node="b", phase="Failed"))
    assert account.freeze().pool(kind, "x") is EMPTY_POOL
    account.keep(CARDS, [one])  # a kind of which the node matters
    asked.clear()
    account.put(one)
    account.put(replace(one, node="a"))
    assert asked == ["", "a"]


def test_pools_of_one_kind_are_the_same_while_another_kind_changes() -> None:
    """Without a look at any of them; in a what-if they count as others."""
    account = Account([TEAM, CARDS])
    account.put(held("a", "n1", team="red"))
    before = account.freeze()
    account.put(held("b", "n1", team="red"))

    after = account.freeze()

    assert [after.has_pools_of(before, kind) for kind in (TEAM, CARDS)] == [False, True]
    assert set(after.other_pools(TEAM, before)) == {"red"}
    moved = after.with_pods([(held("b", "n1", team="red"), "n1")], [])
    assert not moved.has_pools_of(after, TEAM)
    assert moved.has_pools_of(after, CARDS)
    assert after.has_pools_of(after, TEAM)


def computed_pools(account: FrozenAccount, kind: AccountKind) -> Mapping[str, Pool]:
    return {name: account.pool(kind, name) for name in account.other_pools(kind, None)}


@given(st.lists(PODS, unique_by=lambda one: one.name), st.data())
def test_a_what_if_frees_all_that_a_pod_holds_and_allocates_it_elsewhere(pods, data):
    account = Account([TEAM, CARDS])
    for one in pods:
        account.put(one)
    before = account.freeze()
    there = [one for one in pods if one.node and not one.finished]
    gone = data.draw(st.lists(st.sampled_from(there), unique_by=id)) if there else []

    moves = [(one, one.node) for one in gone]
    without = before.with_pods(moves, [])
    again = without.with_pods([], moves)

    left = {one.key: one for one in pods if one not in gone}
    for kind in (TEAM, CARDS):
        for name, pool in computed_pools(before, kind).items():
            wanted = _pool(
                kind,
                [
                    (one, each)
                    for one in left.values()
                    if not one.finished
                    for each in kind.holdings(one)
                    if each.pool == name
                ],
            )
            assert without.pool(kind, name).allocated == wanted.allocated
            assert without.pool(kind, name).requested == pool.requested
            assert again.pool(kind, name) == pool
            assert name in set(without.other_pools(kind, before)) or not any(
                each.pool == name for one in gone for each in kind.holdings(one)
            )
    assert contents(before) == contents(account.freeze())


def test_pods_that_hold_nothing_cost_nothing():
    account = Account([TEAM])
    before = account.freeze()
    account.put(held("p", "a"))

    assert account.freeze() is before
    assert Account().freeze() is Account().freeze()


def test_a_change_of_the_status_changes_no_sum():
    account = Account([TEAM])
    one = held("p", "a", team="x")
    account.put(one)
    before = account.freeze()
    account.put(replace(one, ready=True))

    assert account.freeze() is before


def test_a_pod_that_gets_an_annotation_holds_what_it_says():
    """A scheduler writes what it has chosen into the pod that it assumes."""
    kind = AccountKind(
        "cards", lambda one: [Holding(one.node, (("0", 1),))] if one.annotations else []
    )
    account = Account([kind])
    account.put(held("p", "a"))
    account.put(replace(held("p", "a"), annotations=(("card", "0"),)))

    assert account.freeze().pool(kind, "a").allocated == {"0": 1}


def test_a_kind_with_labels_is_asked_only_about_pods_that_may_hold_something():
    asked = []

    def noted(one: ClusterPod) -> Sequence[Holding]:
        asked.append(one.name)
        return team(one)

    kind = AccountKind("noted", noted, labels=frozenset({"team", "crew"}))
    for kinds in ([kind], [kind, TEAM]):  # the second one is asked about all
        account = Account(kinds)
        asked.clear()
        account.put(held("plain", "a", app="x"))
        account.put(held("labelled", "a", team="x"))
        account.put(replace(held("annotated", "a"), annotations=(("b", "c"),)))
        account.put(replace(held("grouped", "a"), workload_group="g"))
        assert asked == ["labelled", "annotated", "grouped"]
        assert account.freeze().pool(kind, "x").members == {}
        assert account.freeze().pool(kind, "x").pods == 1


def test_a_pod_that_loses_its_labels_holds_nothing_any_more():
    kind = AccountKind("team", team, members=True, labels=frozenset({"team"}))
    account = Account([kind])
    account.put(held("p", "a", team="x"))
    account.put(held("p", "a"))

    assert account.freeze().pool(kind, "x") is EMPTY_POOL
    account.put(held("p", "a", team="y"))
    assert account.freeze().pool(kind, "y").members == {"default/p": "a"}


@pytest.mark.parametrize(
    ("holdings", "error"),
    [
        ([Holding("x", (("cpu", -1),))], "amounts from 0"),
        ([Holding("x", (("cpu", 2**63),))], "amounts from 0"),
        ([Holding("x"), Holding("x")], "each pool once"),
        ([Holding("x" * 5000)], "4096 bytes"),
        ([Holding("x", tuple((str(n), 1) for n in range(MAX_AMOUNTS)))], "at most 4096 amounts"),
        ([3], "'int' object"),
    ],
)
def test_a_pod_that_cannot_be_counted_holds_nothing_and_others_go_on(holdings, error):
    def broken(one: ClusterPod) -> Sequence[Holding]:
        return holdings if one.name == "bad" else team(one)

    kind = AccountKind("broken", broken)
    account = Account([kind, TEAM])
    for name in ("bad", "good"):
        account.put(held(name, "a", team="x"))
    found = account.freeze()

    assert found.pool(kind, "x").pods == 1
    assert found.pool(TEAM, "x").pods == 2
    assert account.unread(kind) == {"default/bad"}
    assert found.with_pods([(held("bad", "a", team="x"), "a")], []).pool(kind, "x").pods == 1
    account.remove("default/bad")
    assert not account.unread(kind)


def test_an_account_that_is_not_kept_is_empty():
    assert Account([TEAM]).freeze().pool(CARDS, "a") is EMPTY_POOL


def test_an_account_that_is_kept_later_counts_the_pods_that_are_there():
    snapshot = Snapshot()
    snapshot.put_node(read_node(node("a")))
    snapshot.put_pod(held("p", "a", team="x"))
    snapshot.keep_account(TEAM)
    view = snapshot.view()
    snapshot.keep_account(TEAM)
    snapshot.put_pod(held("q", "unknown", team="x"))
    snapshot.put_pod(held("r", team="x"))

    assert view.account.pool(TEAM, "x").members == {"default/p": "a"}
    found = snapshot.view().account.pool(TEAM, "x")
    assert found.members == {"default/p": "a", "default/q": "unknown", "default/r": ""}
    assert (found.allocated["cpu"], found.requested["cpu"]) == (2000, 3000)


def test_what_ifs_of_a_view_have_the_account_that_they_would_have():
    snapshot = Snapshot()
    snapshot.keep_account(TEAM)
    snapshot.keep_account(CARDS)
    for name in "ab":
        snapshot.put_node(read_node(node(name)))
    one = held("p", "a", team="x", cards="0-1")
    snapshot.put_pod(one)
    what_if = HypotheticalCluster(snapshot.view())
    what_if.remove("default/p", "a")
    gone = what_if.view().account
    what_if.add(one, "b")

    assert gone.pool(CARDS, "a").allocated == gone.pool(TEAM, "x").allocated == {}
    moved = what_if.view().account
    assert moved.pool(TEAM, "x").members == {"default/p": "b"}
    assert moved.pool(CARDS, "b").allocated == {"0": 1, "1": 1}
    what_if.remove("default/p", "b")
    assert what_if.view().account.pool(CARDS, "b").allocated == {}
    what_if = HypotheticalCluster(snapshot.view())
    what_if.expect({"b": [held("q", team="x")]})
    assert what_if.view().account.pool(TEAM, "x").allocated == {"cpu": 2000}
    what_if.remove("default/p", "a")
    snapshot.put_pod(held("r", "a", team="x"))
    what_if.rebase(snapshot.view())
    assert what_if.view().account.pool(TEAM, "x").allocated == {"cpu": 2000}
    assert what_if.view().account.pool(CARDS, "a").allocated == {}
    assert snapshot.view().account.pool(CARDS, "a").allocated == {"0": 1, "1": 1}


def test_pools_that_nest_have_what_their_pods_hold_of_annotated_kinds() -> None:
    """So it follows from the account alone what is left of a reservation; in what-ifs, too."""
    annotated = AccountKind(
        "cards", lambda pod: (Holding(pod.node, (("0", 50),)),) if pod.node else (), annotation="a"
    )
    other = AccountKind("other", lambda pod: (Holding("all", (("x", 1),)),))
    nesting = AccountKind("group", lambda pod: (Holding("g", (("cpu", 1),)),), nests=True)
    account = Account([nesting, annotated, other])
    one = read_pod(pod("one", "n1"))
    account.put(one)
    account.put(read_pod(pod("two", "n2")))
    frozen = account.freeze()
    assert dict(frozen.pool(nesting, "g").allocated) == {"cpu": 2, "cards:0": 100}
    assert dict(frozen.pool(annotated, "n1").allocated) == {"0": 50}
    left = frozen.with_pods([(one, "n1")], ()).pool(nesting, "g").allocated
    assert dict(left) == {"cpu": 1, "cards:0": 50}
    account.remove(one.key)
    assert dict(account.freeze().pool(nesting, "g").allocated) == {"cpu": 1, "cards:0": 50}
