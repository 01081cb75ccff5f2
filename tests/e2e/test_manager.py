"""koord-manager on a real API server, with the rights that ship."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.nodemetric import time_text
from koord.kube.client import (
    CONFIG_MAPS,
    NODE_METRICS,
    NODE_SLOS,
    NODES,
    PODS,
    ApiClient,
    Resource,
)
from koord.kube.errors import KubeError
from tests.support.processes.control_plane import events, running_manager
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.kubectl import Kubectl
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import until_served

NAMESPACE = "koordinator-system"
BATCH_CPU = "kubernetes.io/batch-cpu"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"
PATIENCE = 30.0  # real seconds
PROFILES = Resource("config.koordinator.sh/v1alpha1", "clustercolocationprofiles")
ROLES = Resource("rbac.authorization.k8s.io/v1", "clusterroles")
MANAGER_COMPONENTS = REPOSITORY / "deploy" / "manager"
WAITING = (
    "--feature-gates=ColocationProfileController=true",
    "--colocation-profile-reconcile-interval=1s",
)


def status(cpu: str) -> dict[str, Any]:
    usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    return {
        "updateTime": time_text(time.time()),
        "nodeMetric": {
            "nodeUsage": usage,
            "systemUsage": {"resources": {"cpu": "1", "memory": "1Gi"}},
        },
        "podsMetric": [
            {"name": "a", "namespace": "shop", "priority": "koord-prod", "podUsage": usage}
        ],
    }


async def until(holds: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await holds():
                return found
            await asyncio.sleep(0.1)


async def test_a_node_offers_what_its_report_leaves(
    own_plane: ControlPlane, client: ApiClient, objects: ClusterObjects, manager_token: str,
    node_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """By one patch of its status, with annotations, beside a kubelet that writes the status too."""
    amounts = {"cpu": "10", "memory": "16Gi", "pods": "10"}
    await objects.add_node(node_name, {"capacity": amounts, "allocatable": amounts})
    config = {
        "metadata": {"name": "slo-controller-config", "namespace": NAMESPACE},
        "data": {"colocation-config": '{"enable":true,"cpuReclaimThresholdPercent":100}'},
    }
    await client.create(CONFIG_MAPS.collection(NAMESPACE), config)

    async def node() -> dict[str, Any]:
        return await client.get(NODES.object(node_name))

    async def batch(wanted: str) -> bool:
        return (await node())["status"]["allocatable"].get(BATCH_CPU) == wanted

    try:
        async with Recorder(own_plane.config) as recorder:
            async with running_manager(tmp_path, recorder.url, token=manager_token):
                await until(lambda: client_has(client, NODE_SLOS.object(node_name)))
                metric = await until(lambda: client_has(client, NODE_METRICS.object(node_name)))
                assert metric["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] == 60
                assert metric["metadata"]["ownerReferences"][0]["name"] == node_name
                path = NODE_METRICS.object(node_name, subresource="status")
                uid = metric["metadata"]["uid"]
                await client.replace_status(path, uid, status("2"))
                await until(lambda: batch("7k"))
                found = await node()
                assert BATCH_CPU in found["metadata"]["annotations"][ORIGIN]
                assert found["status"]["capacity"][BATCH_CPU] == "7k"
                assert found["status"]["allocatable"]["cpu"] == "10"
                writes = [one for one in recorder.requests
                          if one.method == "PATCH" and "/nodes/" in one.path]  # fmt: skip
                assert len(writes) <= 2  # annotations at first, then what the report leaves
            assert [f"{one.verb} {one.path}" for one in recorder.refused] == []
    finally:
        await client.delete(CONFIG_MAPS.object("slo-controller-config", namespace=NAMESPACE))


async def client_has(client: ApiClient, path: str) -> dict[str, Any] | None:
    try:
        return await client.get(path)
    except KubeError:
        return None


def waiting_profile(name: str, **spec: Any) -> dict[str, Any]:
    """A profile for the pods of an app, also for those that wait for a node."""
    meta = {"name": name, "labels": {"config.koordinator.sh/controller-managed": "true"}}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": PROFILES.api_version,
        "kind": "ClusterColocationProfile",
        "metadata": meta,
        "spec": {"selector": selector, **spec},
    }


@pytest.fixture
async def patching_token(
    manager_token: str, client: ApiClient, kubectl: Kubectl
) -> AsyncIterator[str]:
    """A token with the rights of deploy/manager and of its component patch-pods."""
    crds = list(
        yaml.safe_load_all((MANAGER_COMPONENTS / "crds/clustercolocationprofiles.yaml").read_text())
    )
    await asyncio.to_thread(kubectl.apply, crds)
    await until_served(client, PROFILES)
    component = yaml.safe_load((MANAGER_COMPONENTS / "patch-pods/kustomization.yaml").read_text())
    for each in component["patches"]:
        await client.json_patch(ROLES.object("koord-manager"), yaml.safe_load(each["patch"]))
    yield manager_token
    for one in (await client.list(PROFILES.collection())).items:
        await client.delete(PROFILES.object(one["metadata"]["name"]))
    await asyncio.to_thread(kubectl.delete, crds)


async def test_pods_that_came_before_their_profile_get_what_may_change(
    own_plane: ControlPlane, client: ApiClient, objects: ClusterObjects, patching_token: str,
    node_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Once each; a pod that has a node stays as it is, and so does one that the API server keeps.

    What the server refuses for one pod is said, and keeps no other from its profile.
    """
    await objects.add_node(node_name, READY)
    labels = {"app": "spark", "name": "n"}
    before = await objects.add_pod("waits", {}, labels=labels)
    placed = await objects.add_pod("placed", {"nodeName": node_name}, labels=labels)
    fixed = await objects.add_pod("fixed", {}, labels={"app": "a-fixed"})
    ruled = await objects.add_pod("ruled", {}, labels={"app": "b-ruled"})

    async def pod(name: str) -> dict[str, Any]:
        return await client.get(PODS.object(name, namespace=SHOP))

    async def rules_hold() -> bool:
        item = {"metadata": {"name": "x", "labels": {"koordinator.sh/qosClass": "BE"}},
                "spec": before["spec"]}  # fmt: skip
        try:
            await client.create(PODS.collection(SHOP), item, dry_run=True)
        except KubeError as err:
            return "cannot be used in combination" in str(err)
        return False

    async with Recorder(own_plane.config) as recorder:
        async with running_manager(tmp_path, recorder.url, *WAITING, token=patching_token):
            await until(rules_hold)
            # What may never change of a pod: how much it is guaranteed.
            container = {"name": "app", "resources": {"requests": {"cpu": "1"}}}
            patch: dict[str, Any] = {"spec": {"containers": [container]}}
            await client.create(PROFILES.collection(), waiting_profile("a-fixed", patch=patch))
            sub_priority = waiting_profile("b-ruled", koordinatorPriority=7)
            await client.create(PROFILES.collection(), sub_priority)
            patch = {
                "metadata": {"annotations": {"a": "b"}},
                "spec": {"containers": [{"name": "app", "image": "other"}]},
            }
            made = waiting_profile(
                "spark", labels={"team": "blue"}, labelSuffixes={"name": "-be"},
                schedulerName="koord-scheduler", patch=patch,
            )  # fmt: skip
            await client.create(PROFILES.collection(), made)

            async def amended() -> bool:
                return "team" in (await pod("waits"))["metadata"]["labels"]

            await until(amended)

            def looks() -> int:
                asked = recorder.asked("list", PODS.collection())
                return sum("spec.nodeName=," in one.query.get("fieldSelector", "") for one in asked)

            enough = looks() + 6  # two looks for three profiles

            async def looked() -> bool:
                return looks() >= enough

            await until(looked)
        assert [f"{one.verb} {one.path}" for one in recorder.refused] == []
        patches = [one.path for one in recorder.requests
                   if one.method == "PATCH" and "/pods/" in one.path]  # fmt: skip
    assert sorted(patches) == [
        PODS.object(each, namespace=SHOP) for each in ("fixed", "ruled", "waits")
    ]
    found = await pod("waits")
    expected = copy.deepcopy(before["spec"])
    expected["containers"][0]["image"] = "other"
    assert found["spec"] == expected  # the same scheduler
    assert found["metadata"]["labels"] == {"app": "spark", "name": "n-be", "team": "blue"}
    assert found["metadata"]["annotations"] == {"a": "b"}
    for kept in (placed, fixed, ruled):
        now = await pod(kept["metadata"]["name"])
        assert (now["metadata"]["labels"], now["spec"]) == (
            kept["metadata"]["labels"], kept["spec"],
        )  # fmt: skip
    said = events(tmp_path, "pod.not_amended", "manager")
    assert [each["pod"] for each in said] == ["fixed", "ruled"]
