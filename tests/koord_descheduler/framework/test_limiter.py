"""Limits of a cycle: the table of Koordinator, and never more than a limit, in any order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord_descheduler.framework.evictor import EvictionLimiter, Limit, Ticket
from tests.support.descheduler.framework import make_pod

D1, D2 = make_pod(node="n1"), make_pod(node="n2")
K1, K2 = make_pod(namespace="kube-system", node="n1"), make_pod(namespace="kube-system", node="n2")


@pytest.mark.parametrize(
    ("limits", "pods", "allowed"),
    [
        ((None, None, None), (D1, K2), "TT"),
        ((1, None, None), (D1, D1), "TF"),
        ((None, 1, None), (D1, D2), "TF"),
        ((None, None, 2), (D1, D2, K1), "TTF"),
        ((1, 1, 2), (D1, D1, D2, K1), "TFFF"),
        ((0, None, None), (D1,), "F"),
        ((0, None, None), (make_pod(node=""),), "T"),
        ((None, None, 0), (make_pod(node=""),), "F"),
    ],
)
def test_limits_allow_what_koordinator_allows(
    limits: tuple[int | None, ...], pods: tuple[ClusterPod, ...], allowed: str
) -> None:
    """Source: spec of the descheduler, eviction limiter."""
    per_node, per_namespace, total = limits
    limiter = EvictionLimiter(per_node=per_node, per_namespace=per_namespace, total=total)

    found = [isinstance(limiter.take(pod), Ticket) for pod in pods]
    assert "".join("FT"[each] for each in found) == allowed


def test_the_limit_that_denies_is_named_in_the_order_of_the_checks() -> None:
    """Node, namespace, total."""
    assert EvictionLimiter(per_node=0, per_namespace=0, total=0).take(D1) is Limit.NODE
    assert EvictionLimiter(per_namespace=0, total=0).take(D1) is Limit.NAMESPACE
    assert EvictionLimiter(total=0).take(D1) is Limit.TOTAL


def test_a_ticket_of_an_earlier_cycle_does_not_make_room_in_this_one() -> None:
    """An eviction that fails after the next cycle has begun."""
    limiter = EvictionLimiter(total=1)
    old = limiter.take(D1)
    limiter.reset()
    assert isinstance(limiter.take(D1), Ticket)
    assert isinstance(old, Ticket)
    limiter.give_back(old)

    assert limiter.take(D2) is Limit.TOTAL
    assert limiter.total_evicted == 1


def test_a_node_at_its_limit_is_exceeded_and_one_without_a_limit_never() -> None:
    """Plugins ask to skip the rest of a node."""
    limiter = EvictionLimiter(per_node=1)
    assert not limiter.node_limit_exceeded("n1")
    limiter.take(D1)
    assert limiter.node_limit_exceeded("n1")
    assert not limiter.node_limit_exceeded("n2")
    free = EvictionLimiter()
    free.take(D1)
    assert not free.node_limit_exceeded("n1")


LIMITS = st.none() | st.integers(0, 4)
PODS = st.builds(make_pod, namespace=st.sampled_from("ab"), node=st.sampled_from(["", "1", "2"]))


@given(LIMITS, LIMITS, LIMITS, st.lists(st.tuples(PODS, st.booleans()), max_size=30))
def test_no_limit_is_ever_exceeded_and_none_denies_without_need(
    per_node: int | None,
    per_namespace: int | None,
    total: int | None,
    requested: list[tuple[ClusterPod, bool]],
) -> None:
    """The plain rule, counted anew for each pod; some evictions fail and make room."""
    limiter = EvictionLimiter(per_node=per_node, per_namespace=per_namespace, total=total)
    evicted: list[ClusterPod] = []
    for pod, works in requested:
        nodes = Counter(each.node for each in evicted)
        spaces = Counter(each.namespace for each in evicted)
        fits = (
            (not pod.node or per_node is None or nodes[pod.node] < per_node)
            and (per_namespace is None or spaces[pod.namespace] < per_namespace)
            and (total is None or len(evicted) < total)
        )
        ticket = limiter.take(pod)
        assert isinstance(ticket, Ticket) == fits
        if isinstance(ticket, Ticket) and works:
            evicted.append(pod)
        elif isinstance(ticket, Ticket):
            limiter.give_back(ticket)
    assert limiter.total_evicted == len(evicted)
    assert limiter.total_limit_exceeded == (total is not None and len(evicted) >= total)
