"""What the daemons asked of the API server, after all tests of what kubectl installed."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from auditlog import forbidden, requests
from clusterclient import SYSTEM, Cluster, Object
from installation import Installation
from rights import Right, allows, rights_of

CORE, POLICIES, RESERVING = "", "slo.koordinator.sh", "scheduling.koordinator.sh"
_KUBELET = "the kubelet asks for it, as the agent's review of its own token"
_FAULTS = "no test here makes the fault"
_REPEATED = "an event that is repeated"
_BY_CHANCE = (_FAULTS, _REPEATED)  # a slow machine may make the fault or repeat the event
# Rights that no request of these tests needed, and why they are there.
UNUSED = {
    "koordlet": {
        Right("get", CORE, "nodes/pods"): _KUBELET,
        Right("get", CORE, "nodes/configz"): _KUBELET,
        Right("list", CORE, "pods"): "where the kubelet refuses the agent",
        Right("watch", CORE, "pods"): "where the kubelet refuses the agent",
        Right("update", CORE, "nodes/finalizers"): "an admission plugin wants it, not a request",
        Right("create", "authentication.k8s.io", "tokenreviews"): "a client with a token",
        Right("create", "authorization.k8s.io", "subjectaccessreviews"): "a client with a token",
        Right("create", CORE, "pods/eviction"): "gates that evict are off",
        Right("create", CORE, "events"): "nothing was wrong with the objects of the node",
        Right("patch", CORE, "events"): _REPEATED,
        Right("patch", POLICIES, "nodemetrics"): "its spec changes with the ConfigMap",
        Right("write-own-node-only", POLICIES, "nodemetrics"): "the admission policy asks for it",
        Right("patch", "topology.node.k8s.io", "noderesourcetopologies"): "it does not change here",
    },
    "koord-descheduler": {
        Right("patch", CORE, "events"): _REPEATED,
        Right("watch", "apps.kruise.io", "clonesets"): "there is no OpenKruise",
        Right("get", RESERVING, "podmigrationjobs"): _FAULTS,
        Right("delete", RESERVING, "podmigrationjobs"): "the scavenger's, after a while",
        **{
            Right(verb, RESERVING, "reservations"): "jobs evict directly here"
            for verb in ("get", "create", "patch", "delete")
        },
    },
    "koord-scheduler": {
        Right("get", CORE, "pods"): _FAULTS,
        Right("delete", CORE, "pods"): "no pod had to make room",
        Right("patch", CORE, "events"): _REPEATED,
        Right("patch", CORE, "persistentvolumes"): "no pod has a volume",
        Right("patch", CORE, "persistentvolumeclaims"): "no pod has a volume",
        Right("list", RESERVING, "clusternetworktopologies"): "a flag that is off",
        Right("watch", RESERVING, "clusternetworktopologies"): "a flag that is off",
        Right("list", "scheduling.sigs.k8s.io", "podgroups"): "its plugin is not enabled",
        Right("watch", "scheduling.sigs.k8s.io", "podgroups"): "its plugin is not enabled",
        Right("list", "scheduling.sigs.k8s.io", "elasticquotas"): "its plugin is not enabled",
        Right("watch", "scheduling.sigs.k8s.io", "elasticquotas"): "its plugin is not enabled",
    },
}


def right_of(entry: Object) -> Right:
    """What a request needed."""
    asked = entry["objectRef"]
    part = f"/{asked['subresource']}" if "subresource" in asked else ""
    query = parse_qs(urlsplit(entry["requestURI"]).query)
    name, _, value = query.get("fieldSelector", [""])[0].partition("=")
    selected = value if name == "metadata.name" else ""
    return Right(
        entry["verb"],
        asked.get("apiGroup", ""),
        asked["resource"] + part,
        asked.get("name", selected),
    )


@pytest.mark.parametrize("daemon", UNUSED)
def test_nothing_was_forbidden(cluster: Cluster, installed: Installation, daemon: str) -> None:
    """By RBAC or an admission policy."""
    assert forbidden(cluster, daemon) == []


@pytest.mark.parametrize("daemon", UNUSED)
def test_a_right_that_was_not_used_has_a_reason(
    cluster: Cluster, installed: Installation, daemon: str, request: pytest.FixtureRequest
) -> None:
    """All others were; a right that has a reason is granted and, but by chance, was not used."""
    here = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    if here - {item.path.name for item in request.session.items} or request.config.option.keyword:
        pytest.skip("needs a run of all tests in tests/cluster")
    roles = [cluster.find("clusterrole", daemon), cluster.find("role", daemon, "-n", SYSTEM)]
    held = {right for role in roles for right in rights_of(role.get("rules", ()))}
    used = {right_of(entry) for entry in requests(cluster, daemon)}
    unused = {one for one in held if not any(allows(one, each) for each in used)}
    assert sorted(unused - set(UNUSED[daemon])) == []
    assert sorted(set(UNUSED[daemon]) - held) == [], "not granted"
    stale = {right for right, why in UNUSED[daemon].items() if why not in _BY_CHANCE} - unused
    assert sorted(stale) == [], "used"
