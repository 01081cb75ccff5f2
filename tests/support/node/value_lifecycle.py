"""A day in the life of all kinds of values, for processes that die somewhere in it."""

from koord.api.machine import parse_cpulist
from tests.support.node.model_tree import (
    BURST,
    CPUS,
    IDLE,
    PLACES,
    QUOTA,
    SHARES,
    ModelTree,
    desired,
    release,
)

BATCHES = [
    [desired(QUOTA, "be", 80_000), desired(BURST, "be", 30_000), desired(SHARES, "be/pod1", 300)],
    [desired(CPUS, place, parse_cpulist("0-3")) for place in PLACES],
    [desired(QUOTA, "be", 20_000), desired(QUOTA, "be/pod1", 10_000, original=50_000)],
    [desired(IDLE, "be/pod1", 1), desired(IDLE, "be/pod2", 1)],
    [desired(CPUS, place, parse_cpulist("2-5")) for place in PLACES],
    [desired(QUOTA, "be", 90_000), desired(SHARES, "be/pod1", 400)],
    [release(IDLE, "be/pod1"), release(BURST, "be")],
    [release(CPUS, place) for place in PLACES],
    [release(QUOTA, "be/pod1"), release(SHARES, "be/pod1"), release(IDLE, "be/pod2")],
    [release(QUOTA, "be")],
]
BORN = "be/pod3"


def dawn(tree: ModelTree) -> None:
    """What the groups have before."""
    tree.reset()
    tree.foreign(SHARES, "be/pod1", "512")
    tree.foreign(QUOTA, "be/pod1", "50000")


def live(tree: ModelTree, hook) -> None:
    """Go through the day; a pod is born while its parent is squeezed."""
    writer = tree.writer(hook)
    for number, desired_values in enumerate(BATCHES):
        writer.apply(desired_values)
        if number == 5:
            tree.add(BORN)
