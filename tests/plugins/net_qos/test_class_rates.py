"""Network QoS: rates of classes from a NodeSLO."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qosstrategy import (
    MAX_RATE,
    MIN_RATE,
    NetQoSPolicy,
    NetworkQoS,
    QoSClassStrategy,
    QoSPolicies,
    ResourceQoS,
)
from koord.api.quantity import Quantity
from koordlet.host.net.tc import tree
from koordlet_plugins.net_qos import ClassRates, classes

G = 125_000_000  # bytes/s of 1G
LINK = ClassRates(1, 0, G, G, 0)


def strategy(ls=None, be=None, policy=NetQoSPolicy.TC):
    ls, be = (QoSClassStrategy(network=each or NetworkQoS()) for each in (ls, be))
    return ResourceQoS(ls=ls, be=be, policies=QoSPolicies(network=policy))


def network(request=0, limit=0):
    return NetworkQoS(enable=True, egress_request=request, egress_limit=limit)


def test_rates_are_those_that_the_host_takes():
    assert (MIN_RATE, MAX_RATE) == (tree.MIN_RATE, tree.MAX_RATE)


def test_the_worked_example():
    """1G, LS 50 to 100 percent, BE 100M to 500M."""
    found, problems = classes(
        strategy(network(50, 100), network("100M", "500M")), Quantity.parse("1G"), None
    )

    assert found == (
        LINK,
        ClassRates(2, 1, 50_000_000, G, 1),
        ClassRates(3, 1, 62_500_000, G, 2),
        ClassRates(4, 1, 12_500_000, 62_500_000, 3),
    )
    assert not problems


@pytest.mark.parametrize(
    ("total", "link", "most", "complaints"),
    [
        ("1G", None, G, 0),
        ("1G", 10 * G, G, 0),
        ("10G", G, G, 1),
        ("0", G, G, 0),
        ("-5", G, G, 1),
        ("100E", G, G, 1),
    ],
)
def test_the_bandwidth_is_at_most_that_of_the_link(total, link, most, complaints):
    found, problems = classes(strategy(), Quantity.parse(total), link)

    assert found == (ClassRates(1, 0, most, most, 0), ClassRates(2, 1, most, most, 1))
    assert len(problems) == complaints


@pytest.mark.parametrize(("total", "complaints"), [("0", 0), ("-1", 1), ("1", 0)])
def test_nothing_is_shaped_while_the_bandwidth_is_unknown(total, complaints):
    found, problems = classes(strategy(), Quantity.parse(total), None)

    assert found == ()
    assert len(problems) == complaints


@pytest.mark.parametrize("policy", [NetQoSPolicy.TERWAY, None])
def test_another_agent_does_it(policy):
    assert classes(strategy(policy=policy), Quantity.parse("1G"), None) == ((), ())


@pytest.mark.parametrize(
    ("request_", "limit", "rate", "ceil", "complaints"),
    [
        (0, 0, MIN_RATE, G, 0),
        (0, 40, MIN_RATE, 50_000_000, 0),
        (101, 100, MIN_RATE, G, 1),
        (-1, -1, MIN_RATE, G, 2),
        ("-10M", "10M", MIN_RATE, 1_250_000, 1),
        ("ten", "x", MIN_RATE, G, 2),
        ("20M", "10M", 1_250_000, 1_250_000, 1),
        ("2G", "3G", G - MIN_RATE, G, 3),
        ("1", "1", MIN_RATE, MIN_RATE, 0),
    ],
)
def test_forms_of_rates(request_, limit, rate, ceil, complaints):
    """Percent, quantities; negative, no quantities, above the limit, above the bandwidth."""
    found, problems = classes(strategy(be=network(request_, limit)), Quantity.parse("1G"), None)

    assert found[2] == ClassRates(4, 1, rate, ceil, 3)
    assert len(problems) == complaints


def test_requests_of_more_than_there_is():
    """LS comes first."""
    found, [problem] = classes(strategy(network(80), network(80)), Quantity.parse("1G"), None)

    assert [each.rate for each in found[2:]] == [100_000_000, 25_000_000 - MIN_RATE]
    assert found[1].rate == MIN_RATE
    assert "left of the bandwidth" in str(problem)


rates = st.integers(-5, 200) | st.text("0123456789kMGTE-.", max_size=6)


@given(
    st.builds(network, rates, rates),
    st.builds(network, rates, rates),
    st.integers(-(10**13), 10**20),
    st.none() | st.integers(1, 10**11),
)
def test_any_strategy_is_a_tree_or_nothing(ls, be, total, link):
    """Which the kernel can have."""
    found, _ = classes(strategy(ls, be), Quantity(total * 10**9), link)

    if found:
        wanted = [tree.TrafficClass(*astuple(each)) for each in found]
        assert tree.TrafficTree.of(2, wanted, []).classes == tuple(wanted)
