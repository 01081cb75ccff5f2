"""Random small clusters with gangs that have rules about each other, and brute force over them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from koord.api.elasticquota import API_VERSION, NAME, PLURAL
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord.cluster.view import View
from koord.kube.client import Resource
from koord_scheduler.framework.groupplan import GroupPlan, NodeOrder, NoGroupPlan
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreEnqueuePlugin
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin.testing.harness import ProfileHarness, fake_cluster
from tests.support.clusters import Json, near, node, pod, read_node, read_pod

QUOTAS = Resource(API_VERSION, PLURAL)
PLUGINS = (
    "PrioritySort",
    "DefaultBinder",
    "NodeResourcesFit",
    "InterPodAffinity",
    "PodTopologySpread",
    "NodeAffinity",
    "NodePorts",
    "ElasticQuota",
    "Planner",
)


class Planner(PreEnqueuePlugin):
    """Gives the test its handle."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.handle = handle

    def pre_enqueue(self, pod: ClusterPod) -> None:
        """Every pod may be tried."""


def configuration(plugins: Sequence[str] = PLUGINS, **more: Any) -> Json:
    """A configuration with one profile that has these plugins."""
    enabled = [{"name": name} for name in plugins]
    # The max of a quota is its limit: what a tree has follows events of nodes, which are none here.
    args = {"kind": "ElasticQuotaArgs", "enableRuntimeQuota": False}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"multiPoint": {"enabled": enabled}},
                "pluginConfig": [{"name": "ElasticQuota", "args": args}],
            }
        ],
        **more,
    }


class SmallClusters:
    """A profile with plugins of Kubernetes and ElasticQuota, for one cluster after the other."""

    def __init__(self, kit: ProfileHarness) -> None:
        self.state = kit.cluster.state
        self.handle: Handle = kit.plugin("Planner").handle
        self._quotas: list[str] = []  # namespace/name of those that there are

    def become(
        self, nodes: Sequence[Json], running: Sequence[Json] = (), quotas: Sequence[Json] = ()
    ) -> None:
        """Have these nodes, pods and quotas and no others."""
        for kind in (POD, NODE):
            for key in tuple(self.state.keys(kind)):
                self.state.remove(kind, key)
        informers: Any = self.handle.services.informers
        for key in self._quotas:
            informers.delete(QUOTAS, key)
        for one in quotas:
            informers.apply(QUOTAS, one)
        self._quotas = [
            f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in quotas
        ]
        for one in nodes:
            self.state.put(NODE, read_node(one))
        for one in running:
            self.state.put(POD, read_pod(one))

    def plan(
        self, members: Sequence[ClusterPod], order: NodeOrder | None = None
    ) -> GroupPlan | NoGroupPlan:
        return self.handle.groups().plan(members, self.state.view(), order)

    def exists(self, members: Sequence[ClusterPod]) -> bool:
        """Whether there is some way, by trying all."""
        return _try_all(self.handle.filters(), self.state.view(), list(members))

    def holds(self, members: Sequence[ClusterPod], plan: GroupPlan) -> bool:
        """Whether the pods can be placed one after the other as planned."""
        what_if, by_key = HypotheticalCluster(self.state.view()), {one.key: one for one in members}
        assert plan.nodes.keys() == by_key.keys()
        for key, name in plan.nodes.items():
            if name not in _feasible(self.handle.filters(), what_if.view(), by_key[key]):
                return False
            what_if.add(by_key[key], name)
        return True


@contextmanager
def running(config: Json | None = None) -> Iterator[SmallClusters]:
    """Run a profile; None: with PLUGINS."""
    kit = ProfileHarness(
        config or configuration(), fake_cluster(), {"Planner": Planner}, installed=True
    )
    with asyncio.Runner() as runner:
        runner.run(kit.__aenter__())
        try:
            yield SmallClusters(kit)
        finally:
            runner.run(kit.__aexit__(None, None, None))


def _try_all(filters: Any, view: View, left: list[ClusterPod]) -> bool:
    if not left:
        return True
    for one in left:
        for name in _feasible(filters, view, one):
            what_if = HypotheticalCluster(view)
            what_if.add(one, name)
            if _try_all(filters, what_if.view(), [each for each in left if each is not one]):
                return True
    return False


def _feasible(filters: Any, view: View, one: ClusterPod) -> list[str]:
    state = CycleState()
    if not filters.pre_filter(state, one, view).status.ok:
        return []
    rows = range(len(view))
    return [view.node(row).name for row in rows if filters.filter_row(state, one, view, row).ok]


def pod_affinity(app: str, key: str) -> Json:
    return near("podAffinity", {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})


def apart(app: str, key: str) -> Json:
    return near(
        "podAntiAffinity", {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    )


def spread(app: str, key: str, skew: int) -> Json:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }


def small(name: str, cpu: int, zone: str) -> Json:
    return node(name, {"zone": zone}, {"cpu": str(cpu), "pods": "4"})


def member(name: str, cpu: int, app: str = "", quota: str = "", **spec: Any) -> Json:
    labels = {"app": app} if app else {}
    if quota:
        labels[NAME] = quota
    found = pod(name, "", labels, {"cpu": str(cpu)}, **spec)
    return {**found, "status": {"phase": "Pending"}}


def is_planned_rightly(world: SmallClusters, seed: int) -> bool:
    """Whether a random gang in a random cluster is planned if and only if it can be placed.

    Up to four members in up to two quotas, on up to three nodes in up to two zones, beside up to
    two running pods; each member may have affinity, anti-affinity or a spread constraint.
    """
    chance = Random(seed)
    nodes = [
        small(f"n{at}", chance.randint(1, 4), chance.choice("ab"))
        for at in range(chance.randint(1, 3))
    ]
    apps = [chance.choice("xy") for _ in range(chance.randint(0, 2))]
    there = [pod(f"r{at}", "n0", {"app": app}) for at, app in enumerate(apps)]
    quotas = [
        {
            "metadata": {"namespace": "quotas", "name": name, "uid": name},
            "spec": {"min": {"cpu": "0"}, "max": {"cpu": str(chance.randint(1, 8))}},
        }
        for name in ("q1", "q2")
    ]
    world.become(nodes, there, quotas)
    members = [read_pod(_random_member(chance, at)) for at in range(chance.randint(1, 4))]
    plan = world.plan(members)
    if isinstance(plan, GroupPlan):
        return world.holds(members, plan)
    return not plan.cut and not world.exists(members)


def _random_member(chance: Random, at: int) -> Json:
    about, key = chance.choice("xy"), chance.choice(("zone", "kubernetes.io/hostname"))
    rules: list[Json] = [
        {},
        {},
        {"affinity": pod_affinity(about, key)},
        {"affinity": apart(about, key)},
        {"topologySpreadConstraints": [spread(about, key, chance.randint(1, 2))]},
    ]
    rule = chance.choice(rules)
    quota = chance.choice(("", "q1", "q1", "q2"))
    return member(f"p{at}", chance.randint(1, 3), chance.choice("xy"), quota, **rule)
