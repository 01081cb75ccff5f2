"""RemovePodsViolatingNodeTaints. Source: the Kubernetes descheduler's guide."""

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.node_constraints import RemovePodsViolatingNodeTaints

TAINT = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}


def cluster_with(*taints: dict[str, str]) -> FakeCluster:
    cluster = FakeCluster()
    cluster.node("n1", taints=taints)
    cluster.node("n2")
    return cluster


@pytest.mark.parametrize(
    ("effect", "args", "goes"),
    [
        ("NoSchedule", {}, True),
        ("NoExecute", {}, False),  # Kubernetes evicts by it itself
        ("PreferNoSchedule", {}, False),
        ("PreferNoSchedule", {"includePreferNoSchedule": True}, True),
        ("NoSchedule", {"excludedTaints": ["dedicated"]}, False),
        ("NoSchedule", {"excludedTaints": ["dedicated=batch"]}, False),
        ("NoSchedule", {"excludedTaints": ["dedicated=web"]}, True),
        ("NoSchedule", {"includedTaints": ["dedicated"]}, True),
        ("NoSchedule", {"includedTaints": ["dedicated=batch"]}, True),
        ("NoSchedule", {"includedTaints": ["other"]}, False),
        ("NoSchedule", {"namespaces": {"include": ["shop"]}}, False),
    ],
)
async def test_which_taints_count(round_of, effect, args, goes):
    cluster = cluster_with({**TAINT, "effect": effect})
    cluster.pod("p", "n1")
    cluster.pod("q", "n2")
    gone, _ = await round_of(RemovePodsViolatingNodeTaints, cluster, args)

    assert gone == (["p"] if goes else [])


@pytest.mark.parametrize(
    ("toleration", "goes"),
    [
        ({"key": "dedicated", "value": "batch", "effect": "NoSchedule"}, False),
        ({"key": "dedicated", "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": "dedicated", "value": "web"}, True),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, True),
    ],
)
async def test_tolerations(round_of, toleration, goes):
    cluster = cluster_with(TAINT)
    cluster.pod("p", "n1", spec={"tolerations": [toleration]})
    gone, found = await round_of(RemovePodsViolatingNodeTaints, cluster)

    assert gone == (["p"] if goes else [])
    if goes:
        why = "it does not tolerate the taint dedicated=batch:NoSchedule of its node"
        assert found["p"] == (Action.EVICT, why)


async def test_finished_pods_stay(round_of):
    cluster = cluster_with(TAINT)
    cluster.pod("p", "n1", phase="Succeeded")

    assert (await round_of(RemovePodsViolatingNodeTaints, cluster))[0] == []


async def test_the_first_taint_that_is_not_tolerated_is_named(round_of):
    cluster = cluster_with(TAINT, {"key": "gpu", "effect": "NoSchedule"})
    cluster.pod("p", "n1", spec={"tolerations": [{"key": "dedicated", "operator": "Exists"}]})
    _, found = await round_of(RemovePodsViolatingNodeTaints, cluster)

    assert found["p"][1] == "it does not tolerate the taint gpu=:NoSchedule of its node"


def test_bad_arguments():
    with pytest.raises(KoordError):
        PluginHarness(
            RemovePodsViolatingNodeTaints,
            cluster_with(),
            args={"excludedTaints": ["a"], "includedTaints": ["b"]},
        )
