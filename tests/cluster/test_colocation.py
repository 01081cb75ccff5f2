"""Colocation without any part of Koordinator: the loop that all four daemons close.

A ClusterColocationProfile makes the pods of a Deployment best-effort, by the API server alone;
the manager offers what prod pods leave of the real node; the scheduler places within it; the agent
squeezes; prod pods that are busy come and go; and a batch pod that is busy leaves a hot node.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from koord.api.quantity import Quantity
from tests.support.image.treeimages import TAGS
from tests.support.real_apiserver.rights import Right
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.audit_log import forbidden, held_and_unused
from tests.support.real_cluster.client import (
    SHOP,
    SYSTEM,
    Cluster,
    Object,
    deployment,
    pod,
    quota,
)
from tests.support.real_cluster.colocation import (
    BATCH_CPU,
    EACH,
    batch_pod,
    begin_colocation,
    end_colocation,
    is_mutated,
    not_mutated,
    offered,
    policies,
)
from tests.support.real_cluster.hot_node import leaves_the_hot_node, set_threshold
from tests.support.real_cluster.installation import CONFIG, Manager

CPUS = os.cpu_count() or 1
REPLICAS = 10 * CPUS  # more than fit
ROOM = 600 * CPUS  # thousandths of a CPU that a node offers that has little else to do
RISE = 200 * CPUS  # thousandths of a CPU that the offer falls by at least
FALL = 150 * CPUS  # and rises by, once prod pods are gone
HERE = 6  # tests in this file
_POLICIES = "admissionregistration.k8s.io"
_KINDS = ("mutatingadmissionpolicies", "validatingadmissionpolicies")
_SLO = "slo.koordinator.sh"
# Rights that a run of these tests may do without, and why they are there.
UNUSED = {
    Right("patch", "", "events"): "no event is repeated yet",
    **{
        Right(verb, _POLICIES, each): "the profile is not changed, nor deleted, while it works"
        for verb in ("update", "delete")
        for kind in _KINDS
        for each in (kind, f"{kind.removesuffix('ies')}ybindings")
    },
    Right("create", _SLO, "nodemetrics"): "the agents made them before it came",
    Right("patch", _SLO, "nodemetrics"): "its spec changes with the ConfigMap",
    Right("patch", _SLO, "nodeslos"): "its spec changes with the ConfigMap",
    Right("delete", _SLO, "nodemetrics"): "colocation stays on, and the nodes stay",
    Right("delete", _SLO, "nodeslos"): "the nodes stay",
}
# Quotas of best-effort pods, in microseconds per period: of 65 percent of all CPUs they get nearly
# all while prod pods wait, and hardly any while these keep half of the CPUs busy.
LARGE, SMALL = 30_000 * CPUS, 15_000 * CPUS


@pytest.fixture(scope="module", autouse=True)
def colocating(manager: Manager, cluster: Cluster) -> Iterator[None]:
    """The profile is in force."""
    begin_colocation(cluster)
    yield
    end_colocation(cluster)


@pytest.fixture
def api(cluster: Cluster) -> Api:
    """For questions that are asked often, and cost the node little."""
    return Api(cluster.directory)


def batch_pods(api: Api) -> list[Object]:
    """Return the batch pods that are bound to the real node."""
    found = api.items(f"/api/v1/namespaces/{SHOP}/pods?labelSelector=app-type%3Dbatch") or []
    return [each for each in found if each["spec"].get("nodeName") == NODE]


def explained(cluster: Cluster, node: str = NODE) -> Any:
    """Return what the manager says of a node's batch-cpu."""
    return json.loads(cluster.explanation("koord-manager", node))["resources"][BATCH_CPU]


def test_the_agents_leave_their_duties_to_it(cluster: Cluster, manager: Manager, api: Api) -> None:
    """A NodeSLO that is missing is made by the manager; the agent goes by it."""
    command = ("exec", "daemonset/koordlet", "--", "koordletctl", "status")
    cluster.until(
        lambda: "koord-manager holds its Lease" in cluster.kubectl("-n", SYSTEM, *command),
        "the agent has seen the manager",
    )
    cluster.kubectl("delete", "nodeslo", NODE)

    def found() -> Object:
        answer = api.ask(f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}") or {}
        return {} if "code" in answer else answer

    made = cluster.until(found, "there is a NodeSLO again")
    assert {each["manager"] for each in made["metadata"]["managedFields"]} == {"koord-manager"}
    assert made["spec"]["resourceUsedThresholdWithBE"]["enable"] is True


def test_batch_pods_take_what_prod_pods_leave_and_are_squeezed(
    cluster: Cluster, manager: Manager, shop: None, api: Api
) -> None:
    """Mutated, offered, placed within it, squeezed while prod pods are busy, evicted never."""
    cluster.until(lambda: offered(api) > ROOM, "the node offers batch-cpu")
    on_the_node = {"kubernetes.io/hostname": NODE}
    crunch = batch_pod("crunch", busy=CPUS, nodeSelector=on_the_node)
    cluster.apply(deployment("crunch", REPLICAS, crunch))
    seen: list[tuple[int, int]] = []  # what was offered, and what the pods hold of it

    def is_full() -> bool:
        room, held = offered(api), EACH * len(batch_pods(api))
        seen.append((room, held))
        return held > 0 and held + EACH > room

    cluster.until(is_full, "no other batch pod fits")
    placed = batch_pods(api)
    assert max(held for _, held in seen) <= max(room for room, _ in seen)
    assert list(not_mutated(placed)) == []
    assert {each["status"]["qosClass"] for each in placed} == {"BestEffort"}
    cluster.until(lambda: quota() > LARGE, "they get what is left")
    idle = offered(api)

    web = pod("", "web", busy=CPUS // 2 or 1, cpu="100m", nodeName=NODE)
    cluster.apply(deployment("web", 1, web))

    cluster.until(lambda: 0 < quota() < SMALL, "they are squeezed")
    command = ("exec", "daemonset/koordlet", "--", "koordletctl", "explain", "kubepods/besteffort")
    squeezed = json.loads(cluster.kubectl("-n", SYSTEM, *command, "--output=json"))["values"]
    assert ("cpu_quota", "in force") in {(each["resource"], each["state"]) for each in squeezed}
    cluster.until(lambda: offered(api) <= idle - RISE, "the node offers less")
    why = {each["name"]: each["amount"] for each in explained(cluster)["terms"]}
    assert why["capacity"] == CPUS * 1000
    assert why["usage of prod pods"] <= -RISE

    def is_said() -> bool:
        events = cluster.items("events", "-A", "--field-selector=reason=LessThanHeld")
        return any(f"{SHOP}/crunch-" in each["message"] for each in events)

    if offered(api) < EACH * len(placed):
        cluster.until(is_said, "it is said that pods hold more than there is")
    low = offered(api)

    cluster.kubectl("-n", SHOP, "scale", "deployment/web", "--replicas=0")

    cluster.until(lambda: quota() > LARGE, "they get what is left again")
    cluster.until(lambda: offered(api) >= low + FALL, "the node offers more again")
    still = {each["metadata"]["uid"]: each for each in batch_pods(api)}
    for each in placed:
        [status] = still[each["metadata"]["uid"]]["status"]["containerStatuses"]
        assert status["restartCount"] == 0


@pytest.fixture
def cool_again(cluster: Cluster) -> Iterator[None]:
    """No node is hot any more."""
    yield
    set_threshold(cluster, 100.0)


def test_a_busy_batch_pod_leaves_the_hot_node(
    cluster: Cluster, manager: Manager, idle_nodes: list[str], shop: None, cool_again: None,
    api: Api,
) -> None:  # fmt: skip
    """Evicted by what NodeMetrics say, placed anew on what another node offers, and explained."""
    for each in idle_nodes:
        cluster.until(lambda node=each: offered(api, node) > EACH, "the node offers batch-cpu")

    leaves_the_hot_node(cluster, idle_nodes, batch_pod("moved"))

    assert "moved-hot" in cluster.explanation("koord-descheduler", NODE)
    moved = cluster.pods("moved")
    assert list(not_mutated(moved)) == []
    for each in moved:
        node, name = each["spec"]["nodeName"], f"{SHOP}/{each['metadata']['name']}"
        assert json.loads(cluster.explanation("koord-scheduler", name))["boundTo"] == node
        assert Quantity.parse(explained(cluster, node)["onNode"]).integer >= EACH


def test_a_new_version_keeps_the_policies(cluster: Cluster, manager: Manager, api: Api) -> None:
    """As they are; and pods are mutated by them."""
    before = policies(cluster)

    manager.apply(TAGS[1])

    assert policies(cluster) == before
    assert is_mutated(api)


def test_it_explains_itself_by_the_documented_command(cluster: Cluster, manager: Manager) -> None:
    """In any of its containers, without a shell."""
    command = ("exec", "deployment/koord-manager", "--", "/koord-manager", "explain", NODE)
    said = cluster.kubectl("-n", CONFIG, *command)
    assert f"node {NODE}" in said
    assert BATCH_CPU in said


def test_it_has_the_rights_that_it_needs(
    cluster: Cluster, manager: Manager, request: pytest.FixtureRequest
) -> None:
    """Nothing was forbidden; a right that was not used has a reason."""
    assert forbidden(cluster, "koord-manager") == []
    here = [item for item in request.session.items if item.path == request.path]
    if len(here) < HERE:
        pytest.skip("needs a run of all tests in this file")
    held, unused = held_and_unused(cluster, "koord-manager")
    more = sorted(unused - UNUSED.keys())
    assert not more, more
    not_granted = sorted(UNUSED.keys() - held)
    assert not not_granted, not_granted
