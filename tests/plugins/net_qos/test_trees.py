"""Trees of the node's interface and of pods: rates, limits, addresses, numbers."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Pod
from koord.api.qosstrategy import MIN_RATE, NetworkQoS, QoSClassStrategy, ResourceQoS
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject
from koordlet.host.net.tc.kernel import _can_change_in_place
from koordlet.plugin.network import parse_tree
from koordlet_plugins.net_qos import (
    BE,
    FIRST,
    LAST,
    LEAF,
    LS,
    SYSTEM,
    ClassRates,
    PodAddresses,
    PodTraffic,
    addresses_of,
    classes,
    node_tree,
    numbered,
    owners,
    pod_tree,
    recovered,
)

G = 125_000_000  # bytes/s of 1G
RATES = (
    ClassRates(1, 0, G, G, 0),
    ClassRates(SYSTEM, 1, 50_000_000, G, 1),
    ClassRates(LS, 1, 62_500_000, G, 2),
    ClassRates(BE, 1, 12_500_000, 62_500_000, 3),
)
SEVEN, EIGHT = ip_address("10.0.0.7"), ip_address("10.0.0.8")
SEVEN_6 = ip_address("fd00::7")


def shown(pods, rates=RATES, numbers=None):
    limited = [pod.uid for pod in pods if pod.limit]
    tree = node_tree(rates, pods, numbers or numbered(limited, {}))
    assert parse_tree(str(tree)) == tree
    return str(tree).split("; ")


def test_the_worked_example_without_pods():
    """Koordinator's classes, and the leaves below them."""
    assert shown([]) == [
        "default 5",
        "class 1 below 0 rate 125000000 ceil 125000000 prio 0",
        "class 2 below 1 rate 50000000 ceil 125000000 prio 1",
        "class 3 below 1 rate 62500000 ceil 125000000 prio 2",
        "class 4 below 1 rate 12500000 ceil 62500000 prio 3",
        "class 5 below 2 rate 50000000 ceil 125000000 prio 1",
        "class 6 below 3 rate 62500000 ceil 125000000 prio 2",
        "class 7 below 4 rate 12500000 ceil 62500000 prio 3",
    ]


def test_pods_are_in_the_leaf_of_their_class():
    """By each of their addresses; those of SYSTEM are there by default."""
    found = shown(
        [
            PodTraffic("web", LS, (SEVEN, SEVEN_6), 0),
            PodTraffic("batch", BE, (EIGHT,), 0),
            PodTraffic("agent", SYSTEM, (ip_address("10.0.0.9"),), 0),
        ]
    )

    assert found[8:] == [
        "from 10.0.0.7 class 6",
        "from 10.0.0.8 class 7",
        "from fd00::7 class 6",
    ]


@pytest.mark.parametrize(
    ("limit", "rate", "ceil"),
    [
        (1_000_000, 1_000_000, 1_000_000),
        (10_000_000, 6_250_000, 10_000_000),
        (G, 6_250_000, 62_500_000),
        (MIN_RATE, MIN_RATE, MIN_RATE),
    ],
)
def test_a_limited_pod_has_a_class_below_its_own(limit, rate, ceil):
    """It gets a part of the class's rate, and no more than the class's ceil."""
    found = shown([PodTraffic("batch", BE, (SEVEN,), limit)], numbers={"batch": 100})

    assert f"class 100 below 4 rate {rate} ceil {ceil} prio 3" in found
    assert f"class 7 below 4 rate {12_500_000 - rate} ceil 62500000 prio 3" in found
    assert found[-1] == "from 10.0.0.7 class 100"


@pytest.mark.parametrize("limit", [0, 1_000_000])
def test_a_pod_of_a_class_that_there_is_none_of(limit):
    """Its packets are SYSTEM's; its limit holds."""
    found = shown([PodTraffic("batch", BE, (SEVEN,), limit)], RATES[:3], {"batch": 100})

    assert not any(part.startswith(("class 4 ", "class 7 ")) for part in found)
    assert [part for part in found if part.startswith("from")] == (
        ["from 10.0.0.7 class 100"] if limit else []
    )
    if limit:
        assert "class 100 below 2 rate 1000000 ceil 1000000 prio 1" in found


def test_a_pods_tree():
    assert str(pod_tree(125_000)) == "default 1; class 1 below 0 rate 125000 ceil 125000 prio 0"


UIDS = st.text("abcdef0123456789-", min_size=1, max_size=36)


@st.composite
def some_pods(draw):
    uids = draw(st.lists(UIDS, unique=True, max_size=40))
    limits = st.one_of(st.just(0), st.integers(MIN_RATE, 1 << 42))
    return [
        PodTraffic(
            uid,
            draw(st.sampled_from([SYSTEM, LS, BE])),
            tuple(ip_address(at * 4 + each + 1) for each in range(draw(st.integers(0, 4)))),
            draw(limits),
        )
        for at, uid in enumerate(uids)
    ]


@st.composite
def some_rates(draw):
    percent = st.integers(0, 100)
    of = [
        QoSClassStrategy(
            network=NetworkQoS(
                enable=draw(st.booleans()), egress_request=draw(percent), egress_limit=draw(percent)
            )
        )
        for _ in range(2)
    ]
    total = draw(st.integers(32_000, 1 << 40))
    found, _ = classes(ResourceQoS(ls=of[0], be=of[1]), Quantity.parse(str(total)), None)
    assert found
    return found


@given(some_rates(), some_pods())
def test_any_tree_is_one_that_the_kernel_can_have(rates, pods):
    """Sums of rates are within those above, but for the least of each; ceils always."""
    numbers = numbered([pod.uid for pod in pods if pod.limit], {})
    tree = node_tree(rates, pods, numbers)

    assert parse_tree(str(tree)) == tree
    by_minor = {each.minor: each for each in tree.classes}
    parents = {each.below for each in tree.classes}
    for each in rates[1:]:
        below = [one for one in tree.classes if one.below == each.minor]
        assert sum(one.rate for one in below) <= max(each.rate, MIN_RATE * len(below))
        assert all(one.ceil <= each.ceil for one in below)
    for match in tree.matches:
        assert match.minor not in parents
    for pod in pods:
        if pod.limit:
            own = by_minor[numbers[pod.uid]]
            assert own.ceil <= pod.limit
            assert {m.address for m in tree.matches if m.minor == own.minor} == set(pod.addresses)


@given(some_rates(), some_pods(), st.randoms())
def test_the_order_of_pods_does_not_matter(rates, pods, random):
    numbers = numbered([pod.uid for pod in pods if pod.limit], {})
    before = node_tree(rates, pods, numbers)
    random.shuffle(pods)

    assert node_tree(rates, pods, numbers) == before


@given(some_rates(), some_pods())
def test_one_pod_more_leaves_nearly_all_classes_alone(rates, pods):
    """Unless their count reaches a power of two, only its class and the leaf beside it change."""
    new = PodTraffic("new", LS, (ip_address("192.0.2.1"),), 5_000)
    minor = LS if any(each.minor == LS for each in rates) else SYSTEM
    known = {each.minor for each in rates}
    count = sum((pod.minor if pod.minor in known else SYSTEM) == minor for pod in pods)
    numbers = numbered([pod.uid for pod in pods if pod.limit], {})
    more = numbered([*numbers, "new"], numbers)
    before = node_tree(rates, pods, numbers)
    after = node_tree(rates, [*pods, new], more)

    if count.bit_length() == (count + 1).bit_length():
        changed = set(after.classes) - set(before.classes)
        assert {each.minor for each in changed} <= {more["new"], minor + LEAF}


@given(some_rates(), some_rates(), some_pods(), some_pods())
def test_the_kernel_can_make_any_tree_of_any_other(rates, other, pods, others):
    """Class by class, so that counters and queues of those that stay go on."""
    trees = [
        node_tree(each, of, numbered([pod.uid for pod in of if pod.limit], {}))
        for each, of in ((rates, pods), (other, others))
    ]
    moved = {one.minor: one.below for one in trees[0].classes}

    if all(moved.get(one.minor, one.below) == one.below for one in trees[1].classes):
        assert _can_change_in_place(*trees)


@given(st.sets(UIDS, max_size=60), st.sets(UIDS, max_size=60))
def test_numbers_stay_while_pods_come_and_go(first, then):
    """Each has its own, in range; the same pods get the same ones anew."""
    before = numbered(first, {})
    after = numbered(then, before)

    assert all(after[uid] == before[uid] for uid in first & then)
    assert set(after) == then
    assert len(set(after.values())) == len(then)
    assert all(FIRST <= number <= LAST for number in after.values())
    assert numbered(first, {}) == before


def test_numbers_that_collide():
    """The first in order has it; after a restart as well, by what the kernel has."""
    uids = [f"pod-{number}" for number in range(2000)]
    by_number = {}
    for uid in uids:
        by_number.setdefault(numbered([uid], {})[uid], []).append(uid)
    one, other = next(each for each in by_number.values() if len(each) > 1)[:2]

    found = numbered([one, other], {})
    assert abs(found[one] - found[other]) == 1
    assert numbered([one, other], {other: numbered([other], {})[other]}) != found


@given(some_rates(), some_pods())
def test_numbers_are_recovered_from_a_tree(rates, pods):
    """Those of pods with addresses, whatever they were."""
    limited = [pod.uid for pod in pods if pod.limit]
    numbers = {uid: LAST - at for at, uid in enumerate(limited)}
    tree = node_tree(rates, pods, numbers)
    of = {address: pod.uid for pod in pods for address in pod.addresses}

    found = recovered(tree, of)

    assert found == {p.uid: numbers[p.uid] for p in pods if p.limit and p.addresses}
    assert recovered(tree, {}) == {}


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=30))
def test_recovered_numbers_are_distinct(pairs):
    """Also of a tree that does not fit the pods of now."""
    of = {ip_address(address): f"pod-{pod % 5}" for address, pod in pairs}
    pods = [PodTraffic(f"old-{at}", LS, (ip_address(at),), 5_000) for at in range(1, 20)]
    tree = node_tree(RATES, pods, numbered([pod.uid for pod in pods], {}))

    found = recovered(tree, of)

    assert len(set(found.values())) == len(found)


def pod(uid, *ips, host_network=False, start=0.0, gone_by=None):
    return Pod(
        "default",
        uid,
        uid,
        ips=ips,
        host_network=host_network,
        start_time=start,
        gone_by=gone_by,
    )


def test_a_pods_addresses():
    """Both versions, each once; none in the node's network namespace."""
    assert addresses_of(pod("a", "10.0.0.7", "fd00::7", "10.0.0.7")) == (SEVEN, SEVEN_6)
    assert addresses_of(pod("a")) == ()
    assert addresses_of(pod("a", "10.0.0.7", host_network=True)) == ()


@pytest.mark.parametrize(
    "text",
    [
        "ten",
        "10.0.0",
        "10.0.0.7/8",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "169.254.1.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1%eth0",
        "::ffff:10.0.0.7",
        "255.255.255.255",
        "9" * 5000,
    ],
)
def test_addresses_that_are_no_pods(text):
    with pytest.raises(InvalidObject, match="podIPs"):
        addresses_of(pod("a", "10.0.0.7", text))


@given(st.lists(st.text(max_size=50), max_size=4))
def test_any_text_is_an_address_or_refused(texts):
    try:
        found = addresses_of(pod("a", *texts))
    except InvalidObject:
        return
    assert len(found) <= len(texts)


def test_an_address_that_two_pods_have():
    """It is the younger one's; one that is being deleted comes last. The node's is none's."""
    old, new = pod("old", "10.0.0.7", start=1.0), pod("new", "10.0.0.7", start=2.0)
    leaving = pod("leaving", "10.0.0.7", start=3.0, gone_by=9.0)
    all_three = [PodAddresses(each, addresses_of(each)) for each in (leaving, old, new)]

    assert owners(all_three) == {SEVEN: "new"}
    assert owners(reversed(all_three)) == {SEVEN: "new"}
    assert owners(all_three[:2]) == {SEVEN: "old"}
    assert owners(all_three, [SEVEN]) == {}
    assert owners([PodAddresses(replace(new, start_time=None), (SEVEN,)), all_three[1]]) == {
        SEVEN: "new"
    }
