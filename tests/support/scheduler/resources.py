"""Nodes and pods with resources, for the plugins that look at them."""

from typing import Any

from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.args import ArgsType
from tests.support.clusters import Cluster, Json, node, pod
from tests.support.scheduler.framework import make_pod

MI = 1 << 20
GPU = "example.com/gpu"


def read_args(cls: type[Any], value: object) -> tuple[Any, list[str]]:
    """The arguments, or None, and the faults as texts."""
    args, faults = ArgsType(cls).read(value, ())
    return args, [str(fault) for fault in faults]


def view(*nodes: tuple[Json, Json | None]) -> View:
    """Nodes n0, n1, ... : what is allocatable, and the request of one pod there; None: no pod."""
    objects = [node(f"n{at}", None, allocatable) for at, (allocatable, _) in enumerate(nodes)]
    pods = [
        pod(f"there-{at}", f"n{at}", requests=requests)
        for at, (_, requests) in enumerate(nodes)
        if requests is not None
    ]
    return Cluster(nodes=objects, pods=pods).snapshot().view()


def requesting(**requests: str) -> ClusterPod:
    """A pod that requests this of cpu, memory and so on; gpu is GPU."""
    named = {GPU if name == "gpu" else name: amount for name, amount in requests.items()}
    return make_pod(requests=named)


NAMES = ("cpu", "memory", "ephemeral-storage", GPU, "kubernetes.io/batch-cpu", "hugepages-2Mi")
AMOUNTS = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(["0", "1", "2", "3", "7", "1000", "2Gi"]), max_size=6
)
PODS = st.builds(lambda amounts: make_pod(requests=amounts), AMOUNTS)
VIEWS = st.builds(
    lambda nodes: view(*nodes),
    st.lists(
        st.tuples(
            st.builds(lambda amounts, pods: {**amounts, "pods": pods}, AMOUNTS,
                      st.sampled_from(["0", "1", "5"])),
            st.one_of(st.none(), AMOUNTS),
        ),
        max_size=6,
    ),
)  # fmt: skip
