"""What the daemons asked of the API server, after all tests of what kubectl installed."""

from pathlib import Path

import pytest

from tests.support.programs import MINOR
from tests.support.real_apiserver.rights import Right, allows
from tests.support.real_cluster.audit_log import (
    forbidden,
    held_and_unused,
    requests,
    right_of,
)
from tests.support.real_cluster.client import Cluster
from tests.support.real_cluster.installation import Installation

CORE, POLICIES, RESERVING = "", "slo.koordinator.sh", "scheduling.koordinator.sh"
_KUBELET = "the kubelet asks for it, as the agent's review of its own token"
_LOST = "an answer that is lost on the way, after which the object is read again"
_REPEATED = "an event that is repeated; see the last test"
FINE_GRAINED = 33  # minor version of the first kubelets that look at the right to nodes/pods
TOPOLOGIES = ("topology.node.k8s.io", "noderesourcetopologies")
_TEMPLATES = "gpu-shared-resource-templates"
PATCH_EVENTS = Right("patch", CORE, "events")
# Rights that no request of these tests needs, and why they are there.
UNUSED = {
    "koordlet": {
        Right("get", CORE, "nodes/pods"): _KUBELET,
        Right("get", CORE, "nodes/configz"): _KUBELET,
        **{
            Right(verb, CORE, "pods"): "where the kubelet refuses the agent, as older ones do"
            for verb in ("list", "watch")
            if MINOR >= FINE_GRAINED
        },
        **(
            {Right("create", *TOPOLOGIES): "older kubelets do not say what it would contain"}
            if MINOR < FINE_GRAINED
            else {}
        ),
        Right("update", CORE, "nodes/finalizers"): "an admission plugin wants it, not a request",
        Right("create", "authentication.k8s.io", "tokenreviews"): "a client with a token",
        Right("create", "authorization.k8s.io", "subjectaccessreviews"): "a client with a token",
        Right("create", CORE, "pods/eviction"): "gates that evict are off",
        Right("create", CORE, "events"): "nothing was wrong with the objects of the node",
        PATCH_EVENTS: "as there is none, none is repeated",
        Right("patch", POLICIES, "nodemetrics"): "its spec changes with the ConfigMap",
        Right("write-own-node-only", POLICIES, "nodemetrics"): "the admission policy asks for it",
    },
    "koord-descheduler": {
        Right("watch", "apps.kruise.io", "clonesets"): "there is no OpenKruise",
        Right("delete", RESERVING, "podmigrationjobs"): "the scavenger's, after a while",
        **{
            Right(verb, group, kind): "no pod has devices or CPUs of its own"
            for group, kind in (
                (RESERVING, "devices"),
                ("topology.node.k8s.io", "noderesourcetopologies"),
            )
            for verb in ("list", "watch")
        },
        **{
            Right(verb, RESERVING, "reservations"): "jobs evict directly here"
            for verb in ("get", "create", "patch", "delete")
        },
    },
    "koord-scheduler": {
        Right("delete", CORE, "pods"): "no pod had to make room",
        Right("patch", CORE, "persistentvolumes"): "no pod has a volume",
        Right("patch", CORE, "persistentvolumeclaims"): "no pod has a volume",
        Right(
            "list", "topology.node.k8s.io", "noderesourcetopologies"
        ): "its plugin is not enabled",
        Right(
            "watch", "topology.node.k8s.io", "noderesourcetopologies"
        ): "its plugin is not enabled",
        Right("list", RESERVING, "devices"): "its plugin is not enabled",
        Right("watch", RESERVING, "devices"): "its plugin is not enabled",
        Right("list", CORE, "configmaps", _TEMPLATES): "its plugin is not enabled",
        Right("watch", CORE, "configmaps", _TEMPLATES): "its plugin is not enabled",
        Right("list", RESERVING, "reservations"): "its plugin is not enabled",
        Right("watch", RESERVING, "reservations"): "its plugin is not enabled",
        Right("list", RESERVING, "clusternetworktopologies"): "a flag that is off",
        Right("watch", RESERVING, "clusternetworktopologies"): "a flag that is off",
        Right("list", "scheduling.sigs.k8s.io", "podgroups"): "its plugin is not enabled",
        Right("list", "scheduling.k8s.io", "workloads"): "its plugin is not enabled",
        Right("watch", "scheduling.k8s.io", "workloads"): "its plugin is not enabled",
        Right("watch", "scheduling.sigs.k8s.io", "podgroups"): "its plugin is not enabled",
        Right("list", "scheduling.sigs.k8s.io", "elasticquotas"): "its plugin is not enabled",
        Right("watch", "scheduling.sigs.k8s.io", "elasticquotas"): "its plugin is not enabled",
    },
}
# Rights that a run may need or not, by how quick the machine is, and for what.
BY_CHANCE = {
    "koordlet": {
        Right("patch", *TOPOLOGIES): (
            "the object was created before the kubelet's configuration was known"
        ),
    },
    "koord-descheduler": {
        PATCH_EVENTS: _REPEATED,
        Right("get", RESERVING, "podmigrationjobs"): _LOST,
    },
    "koord-scheduler": {PATCH_EVENTS: _REPEATED, Right("get", CORE, "pods"): _LOST},
}


@pytest.mark.parametrize("daemon", UNUSED)
def test_nothing_was_forbidden(cluster: Cluster, installed: Installation, daemon: str) -> None:
    """By RBAC or an admission policy."""
    assert forbidden(cluster, daemon) == []


@pytest.mark.parametrize("daemon", UNUSED)
def test_a_right_that_was_not_used_has_a_reason(
    cluster: Cluster, installed: Installation, daemon: str, request: pytest.FixtureRequest
) -> None:
    """All others were, but for those that are used by chance; the reasons are of rights it has."""
    here = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    if here - {item.path.name for item in request.session.items} or request.config.option.keyword:
        pytest.skip("needs a run of all tests in tests/cluster")
    held, unused = held_and_unused(cluster, daemon)
    never, by_chance = set(UNUSED[daemon]), set(BY_CHANCE[daemon])
    assert sorted(unused - never - by_chance) == []
    assert sorted(never - unused) == [], "used, or not granted"
    assert sorted(by_chance - held) == [], "not granted"


@pytest.mark.parametrize("daemon", [name for name in BY_CHANCE if PATCH_EVENTS in BY_CHANCE[name]])
def test_an_event_is_patched_only_if_it_is_repeated(
    cluster: Cluster, installed: Installation, daemon: str
) -> None:
    """Its count says how often; or the response to its creation was lost, and it was there."""
    counts = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each.get("count", 1)
        for each in cluster.items("events", "-A")
    }
    of_events = [each for each in requests(cluster, daemon) if allows(PATCH_EVENTS, right_of(each))]
    lost = any(
        each["objectRef"]["resource"] == "events"
        and each.get("responseStatus", {}).get("code") == 409
        for each in requests(cluster, daemon)
    )
    patched = {(one["objectRef"]["namespace"], one["objectRef"]["name"]) for one in of_events}
    assert lost or [name for name in patched if counts.get(name, 2) < 2] == []
