"""Who has taken too much of the scheduler's time goes after the others that wait."""

from hypothesis import given
from hypothesis import strategies as st

from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.activequeue import FairHeap, NamespaceShares, ShareOptions
from koord_scheduler.framework.types import QueuedPod
from tests.support.scheduler.framework import make_pod


def queued(name: str, namespace: str, at: float = 0.0) -> QueuedPod:
    return QueuedPod(pod=make_pod(name, namespace=namespace), timestamp=at)


def older(first: QueuedPod, second: QueuedPod) -> bool:
    return first.timestamp < second.timestamp


def made(*pods: tuple[str, str]) -> tuple[FairHeap, NamespaceShares, SimulatedClock]:
    """A heap with pods, by name and namespace, one second after the other."""
    clock = SimulatedClock()
    shares = NamespaceShares(clock)
    heap = FairHeap(older, shares)
    for at, (name, namespace) in enumerate(pods):
        one = queued(name, namespace, at)
        heap.push(one.pod.uid, one)
    return heap, shares, clock


def popped(heap: FairHeap) -> list[str]:
    names = []
    while (one := heap.pop()) is not None:
        names.append(one.pod.name)
    return names


def test_usual_attempts_cost_nothing() -> None:
    """However many there are: pods keep their order."""
    heap, shares, _ = made(("a", "busy"), ("b", "other"), ("c", "busy"))
    for _ in range(10_000):
        shares.charge("busy", 0.02)
    assert popped(heap) == ["a", "b", "c"]


def test_a_namespace_in_debt_goes_last() -> None:
    """Of several the one that owes least first, each in its own order."""
    pods = [("a", "worse"), ("b", "bad"), ("c", "worse"), ("d", "bad"), ("e", "plain")]
    heap, shares, _ = made(*pods)
    shares.charge("bad", 1.0)
    shares.charge("worse", 2.0)
    assert popped(heap) == ["e", "b", "d", "a", "c"]


def test_a_debt_is_paid_off() -> None:
    """By a tenth of a second each second; then pods that were held go by their age again."""
    heap, shares, clock = made(("a", "bad"), ("b", "plain"), ("c", "bad"), ("d", "plain"))
    shares.charge("bad", 1.02)
    first = heap.pop()
    assert first is not None
    assert first.pod.name == "b"
    clock.tick(5.1)
    assert popped(heap) == ["a", "c", "d"]


def test_what_is_remembered_is_bounded() -> None:
    """In seconds, and in namespaces: the largest debts stay."""
    clock = SimulatedClock()
    shares = NamespaceShares(clock, ShareOptions(namespaces=10))
    for number in range(1000):
        shares.charge("bad", 1000.0)
        shares.charge(f"n{number}", 1.0)
    assert shares.debt("bad") == 30.0
    assert sum(shares.debt(f"n{number}") > 0 for number in range(1000)) <= 10
    clock.tick(300)
    assert shares.debt("bad") == 0


pods = st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y", "z"]))
steps = st.one_of(
    st.tuples(st.just("push"), pods, st.integers(0, 9)),
    st.tuples(st.just("remove"), pods),
    st.tuples(st.just("pop")),
    st.tuples(st.just("charge"), st.sampled_from(["x", "y", "z"]), st.floats(0, 3)),
    st.tuples(st.just("tick"), st.floats(0, 20)),
)


@given(st.lists(steps, max_size=40))
def test_no_pod_is_lost_or_there_twice(history: list[tuple[object, ...]]) -> None:
    """Whatever is charged: what was pushed and not removed comes out once."""
    heap, shares, clock = made()
    there: dict[str, QueuedPod] = {}
    for step in history:
        match step:
            case "push", (str(name), str(namespace)), int(at):
                one = queued(name, namespace, at)
                heap.push(one.pod.uid, one)
                there[one.pod.uid] = one
            case "remove", (str(name), str(namespace)):
                uid = queued(name, namespace).pod.uid
                assert heap.remove(uid) is there.pop(uid, None)
            case ("pop",):
                found = heap.pop()
                assert (found is None) == (not there)
                if found is not None:
                    assert there.pop(found.pod.uid) is found
            case "charge", str(namespace), float(seconds):
                shares.charge(namespace, seconds)
            case "tick", float(seconds):
                clock.tick(seconds)
        assert len(heap) == len(there)
        assert {one.pod.uid for one in heap} == there.keys()
        assert all(uid in heap and heap.get(uid) is one for uid, one in there.items())
