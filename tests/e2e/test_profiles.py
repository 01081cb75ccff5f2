"""Profiles and pod rules as policies: what the API server makes of them, with the manager stopped.

The plain mutation is the oracle of the policies.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.quantity import Quantity
from koord.kube.client import LEASES, PODS, ApiClient, Resource
from koord.kube.errors import AlreadyExists, ApiError, KubeError, NotFound
from koord_manager_plugins.profiles.mutation import PriorityClass, mutate
from koord_manager_plugins.profiles.profile import parse_profile
from koord_manager_plugins.profiles.rules import device_rules_policy, qos_policy
from tests.support.processes.control_plane import running_manager
from tests.support.processes.prometheus import free_port
from tests.support.programs import ADMISSION, MINOR, REPOSITORY, ask
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.policies import (
    BINDINGS,
    OURS,
    POLICIES,
    RULE_BINDINGS,
    delete_policies,
)
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import until_served

NAMESPACE, TEAM = "koordinator-system", "colocated"
PATIENCE = 60.0  # real seconds
PROFILES = Resource("config.koordinator.sh/v1alpha1", "clustercolocationprofiles")
CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
NAMESPACES, ACCOUNTS = Resource("v1", "namespaces"), Resource("v1", "serviceaccounts")
WEBHOOKS = Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
SECRETS = Resource("v1", "secrets")
ROLES = Resource("rbac.authorization.k8s.io/v1", "clusterroles")
NAMESPACED_ROLES = Resource("rbac.authorization.k8s.io/v1", "roles")
RUNTIME_CLASSES = Resource("node.k8s.io/v1", "runtimeclasses")
VALUES = {"koord-batch": 5500, "koord-mid": 7500, "koord-prod": 9500}
BATCH_CPU = "kubernetes.io/batch-cpu"

pytestmark = pytest.mark.skipif(MINOR < 34, reason="MutatingAdmissionPolicy is beta from 1.34 on")

PROFILE_SPECS: dict[str, dict[str, Any]] = {
    "a-all-fields": {
        "namespaceSelector": {"matchLabels": {"enable-colocation": "true"}},
        "selector": {"matchLabels": {"app-type": "spark"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "koordinatorPriority": 1000,
        "schedulerName": "koord-scheduler",
        "labels": {"mutated": "true", "team": "blue"},
        "annotations": {"said.by/profile": 'a "b" \\ \n é 😀 {{ }} $'},
        "labelKeysMapping": {"app-user-id": "koordinator.sh/core-sched-group-id", "no": "absent"},
        "annotationKeysMapping": {"old/key": "new/key"},
        "patch": {
            "metadata": {"labels": {"patched": "1"}, "annotations": {"patched": "2"}},
            "spec": {
                "terminationGracePeriodSeconds": 7,
                "securityContext": {"fsGroup": 3, "sysctls": [{"name": "a.b", "value": "1"}]},
                "nodeSelector": {"disk/type": "ssd"},
                "hostname": None,
            },
        },
    },
    "b-overrules": {
        "namespaceSelector": {"matchLabels": {"enable-colocation": "true"}},
        "selector": {"matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["x", "y"]},
            {"key": "never", "operator": "DoesNotExist"},
            {"key": "tier", "operator": "NotIn", "values": ["y"]},
            {"key": "tier", "operator": "Exists"},
        ]},
        "labels": {"team": "red"},
        "annotations": {"second": "yes"},
    },
    "c-mid": {
        "selector": {"matchLabels": {"wants": "mid"}},
        "priorityClassName": "koord-mid",
        "qosClass": "LS",
        "labelSuffixes": {"name": "-mid", "absent": "-x"},
    },
    "d-not-applied": {
        "selector": {"matchLabels": {"wants": "translation"}},
        "probability": 0,
        "labels": {"not": "set"},
    },
    "f-keyed": {
        "selector": {"matchExpressions": [{"key": "keyed", "operator": "Exists"}]},
        "patch": {"spec": {
            "containers": [
                {"name": "c1", "image": "new", "command": ["a", "b"],
                 "env": [{"name": "A", "value": "new"}, {"name": "B", "value": 'a "b" /~\n'}],
                 "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 443}],
                 "securityContext": {"privileged": False},
                 "livenessProbe": None,
                 "resources": {"limits": {"example.com/x": "1"},
                               "requests": {"example.com/x": "1"}}},
                {"name": "sidecar", "image": "s", "env": [{"name": "S", "value": "1"}],
                 "volumeMounts": [{"name": "data", "mountPath": "/data/~x"}]},
            ],
            "initContainers": [{"name": "first", "image": "i"}],
            "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "tolerations": [{"key": "batch", "operator": "Exists"}],
        }},
    },
    "g-keyed-later": {
        "selector": {"matchLabels": {"keyed": "twice"}},
        "patch": {"spec": {
            "containers": [
                {"name": "c1", "image": "later",
                 "env": [{"name": "B", "value": "later"}, {"name": "C", "value": "c"}]},
                {"name": "sidecar", "image": "later"},
            ],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
                        {"name": "more", "emptyDir": {}}],
        }},
    },
    "e-skips": {
        "selector": {"matchLabels": {"skip": "resources"}},
        "qosClass": "BE",
    },
}  # fmt: skip


def profile(name: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name}
    if name == "e-skips":
        meta["annotations"] = {"config.koordinator.sh/skip-update-resources": ""}
    return {
        "apiVersion": PROFILES.api_version,
        "kind": "ClusterColocationProfile",
        "metadata": meta,
        "spec": PROFILE_SPECS[name],
    }


def amounts(**each: str) -> dict[str, Any]:
    return {"requests": dict(each), "limits": dict(each)}


def pod(
    labels: dict[str, str],
    *resources: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "image": "x", "resources": one}
        for i, one in enumerate(resources or (amounts(cpu="1", memory="4Gi"),))
    ]
    made: dict[str, Any] = {"containers": containers, **spec}
    if init:
        made["initContainers"] = [
            {"name": f"i{i}", "image": "x", **one} for i, one in enumerate(init)
        ]
    meta = {"name": "p", "namespace": TEAM, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made}


BE = {"koordinator.sh/qosClass": "BE"}
SPARK = {"app-type": "spark", "app-user-id": "u1"}
GPU = "koordinator.sh/gpu"
VARIABLES = {
    "env": [{"name": "Z", "value": "z"}, {"name": "A", "value": "old"}],
    "ports": [{"containerPort": 443, "name": "tls"}],
    "livenessProbe": {"exec": {"command": ["x"]}},
}


def keyed(labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A pod whose second container is the one that profiles know."""
    made = pod(labels, {}, amounts(cpu="1"), **spec)
    made["spec"]["containers"][1] |= VARIABLES
    return made


CASES: dict[str, dict[str, Any]] = {
    "keyed lists": keyed({"keyed": "once"}),
    "keyed lists, some there": keyed(
        {"keyed": "once"},
        volumes=[{"name": "other", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
        initContainers=[{"name": "first", "image": "old"}],
        hostAliases=[{"ip": "10.0.0.1", "hostnames": ["b", "c"]}],
    ),
    "keyed lists, none there": pod({"keyed": "once"}, {}),
    "keyed lists of two profiles": keyed({"keyed": "twice"}),
    "all fields": pod(SPARK, hostname="h"),
    "the later name wins": pod({**SPARK, "tier": "x"}),
    "only the second": pod({"tier": "x"}),
    "not the second": pod({"tier": "y"}),
    "several containers": pod(
        SPARK,
        amounts(cpu="500m", memory="1Gi"),
        {"requests": {"cpu": "1500m"}},
        {"limits": {"memory": "1500M"}},
        {},
        init=(
            {"resources": amounts(cpu="10m", memory="1Mi")},
            {"resources": amounts(cpu="1.001", memory="2Mi"), "restartPolicy": "Always"},
        ),
    ),
    "mid": pod({"wants": "mid", "name": "n"}, amounts(cpu="250m", memory="1G")),
    "a class of its own": pod({"wants": "translation", **BE}, priorityClassName="koord-batch"),
    "a class by label": pod({"wants": "translation", "koordinator.sh/priority-class": "koord-mid"}),
    "prod is not translated": pod({"wants": "translation"}, priorityClassName="koord-prod"),
    "a label says prod": pod({**SPARK, "koordinator.sh/priority-class": "koord-free"}),
    "no profile": pod({"other": "app"}, priorityClassName="koord-batch"),
    "resources are skipped": pod({"skip": "resources"}, priorityClassName="koord-batch"),
    "resources are skipped by the other": pod({"skip": "resources", **SPARK}),
    "batch without a profile": pod(
        {"koordinator.sh/qosClass": "BE"},
        amounts(**{BATCH_CPU: "1500", "kubernetes.io/batch-memory": "3Gi"}),
        priorityClassName="koord-batch",
    ),
    "a whole GPU": pod({}, amounts(**{GPU: "200", "cpu": "1"}), {}, amounts(cpu="1")),
    "a part of a GPU": pod({}, amounts(**{GPU: "50"})),
    "GPU core and ratio": pod(
        {}, amounts(**{"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "200"})
    ),
    "GPU core": pod({}, amounts(**{"koordinator.sh/gpu-core": "300"})),
    "shared": pod(
        {}, amounts(**{"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-core": "100"})
    ),
}
# Fields of a pod that profiles set, or its class does; the server's own plugins set others.
COMPARED = ("schedulerName", "hostname", "priority", "priorityClassName", "preemptionPolicy",
            "securityContext", "nodeSelector", "terminationGracePeriodSeconds")  # fmt: skip


def by_key(items: list[dict[str, Any]], key: str, *fields: str) -> dict[Any, Any]:
    """Some fields of the items of a list, but of the token that the server mounts everywhere."""
    return {
        one[key]: {name: one[name] for name in fields if one.get(name) not in (None, {})}
        for one in items
        if not str(one[key]).startswith(("kube-api-access", "/var/run/secrets"))
    }


def lists(spec: dict[str, Any]) -> dict[str, Any]:
    """The keyed lists of a pod; the order of items is not compared."""
    containers = {
        f"{kind} {one['name']}": {
            **{name: one[name] for name in ("image", "command") if name in one},
            "env": by_key(one.get("env") or [], "name", "value"),
            "ports": by_key(one.get("ports") or [], "containerPort", "name"),
            "volumeMounts": by_key(one.get("volumeMounts") or [], "mountPath", "name"),
            "privileged": (one.get("securityContext") or {}).get("privileged"),
            "probed": "livenessProbe" in one,
        }
        for kind in ("containers", "initContainers")
        for one in spec.get(kind) or ()
    }
    tolerations = [one for one in spec.get("tolerations") or ()
                   if not one.get("key", "").startswith("node.kubernetes.io/")]  # fmt: skip
    return {
        "containers": containers,
        "volumes": by_key(spec.get("volumes") or [], "name", "emptyDir"),
        "hostAliases": by_key(spec.get("hostAliases") or [], "ip", "hostnames"),
        "tolerations": tolerations,
    }


def compared(found: dict[str, Any]) -> dict[str, Any]:
    spec = found["spec"]
    return {
        "lists": lists(spec),
        "labels": found["metadata"].get("labels") or {},
        "annotations": found["metadata"].get("annotations") or {},
        **{name: spec[name] for name in COMPARED if spec.get(name)},
        "resources": {
            one["name"]: {
                kind: {name: Quantity.parse(text).nano for name, text in each.items()}
                for kind, each in (one.get("resources") or {}).items()
                if each
            }
            for one in (*spec["containers"], *spec.get("initContainers", ()))
        },
    }


async def until(holds: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await holds():
                return found
            await asyncio.sleep(0.1)


@pytest.fixture
async def cluster(own_plane: ControlPlane, client: ApiClient, kubectl: Any) -> AsyncIterator[str]:
    """Rights, kinds, priority classes and a namespace; yields the manager's token."""
    names = ("namespace", "rbac", "crds/clustercolocationprofiles")
    manifests = [
        one
        for name in names
        for one in yaml.safe_load_all((REPOSITORY / f"deploy/manager/{name}.yaml").read_text())
    ]
    await asyncio.to_thread(kubectl.apply, manifests)
    await until_served(client, PROFILES)
    for name, value in VALUES.items():
        await client.create(CLASSES.collection(), {"metadata": {"name": name}, "value": value})
    labels = {"enable-colocation": "true"}
    with contextlib.suppress(AlreadyExists):  # no controller ends a namespace here
        await client.create(NAMESPACES.collection(), {"metadata": {"name": TEAM, "labels": labels}})
        await client.create(ACCOUNTS.collection(TEAM), {"metadata": {"name": "default"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = ACCOUNTS.object("koord-manager", namespace=NAMESPACE, subresource="token")
    yield (await client.post(path, request))["status"]["token"]
    for one in (await client.list(PROFILES.collection())).items:
        await client.delete(PROFILES.object(one["metadata"]["name"]))
    await delete_policies(client)
    for name in VALUES:
        await client.delete(CLASSES.object(name))
    with contextlib.suppress(NotFound):
        await client.delete(LEASES.object("koordinator-manager", namespace=NAMESPACE))
    await asyncio.to_thread(kubectl.delete, manifests[1:])


async def admitted(client: ApiClient, item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await client.create(
        PODS.collection(TEAM), copy.deepcopy(item), dry_run=True
    )
    return found


async def names(client: ApiClient, resource: Resource) -> set[str]:
    return {one["metadata"]["name"] for one in
            (await client.list(resource.collection(), OURS)).items}  # fmt: skip


async def test_the_api_server_does_what_the_plain_mutation_does(
    own_plane: ControlPlane, client: ApiClient, cluster: str, tmp_path: Path
) -> None:
    """For each case, with the manager stopped: all pods are made, and all as they should be.

    Before that: an edited policy is taken back, and those of a deleted profile go.
    """
    extra = profile("a-all-fields")
    extra["metadata"]["name"] = "goes-again"
    for one in (*map(profile, PROFILE_SPECS), extra):
        await client.create(PROFILES.collection(), one)
    wanted = {f"koord-manager-profile-{name}" for name in PROFILE_SPECS} - {""}
    wanted |= {"koord-manager-device-resources", "koord-manager-extended-resource-spec"}

    async def has(expected: set[str]) -> bool:
        return await names(client, BINDINGS) == expected

    async with Recorder(own_plane.config) as recorder:
        async with running_manager(tmp_path, recorder.url, token=cluster):
            await until(lambda: has(wanted | {"koord-manager-profile-goes-again"}))
            await client.delete(PROFILES.object("goes-again"))
            await until(lambda: has(wanted))
            path = POLICIES.object("koord-manager-profile-c-mid")
            before = await client.get(path)
            updates = len(recorder.asked("update", path))
            await client.merge_patch(path, {"spec": {"failurePolicy": "Fail"}})

            async def taken_back() -> bool:
                if len(recorder.asked("update", path)) == updates:
                    return False
                return bool((await client.get(path))["spec"] == before["spec"])

            await until(taken_back)
            count = len(_writes(recorder))
            note = {"metadata": {"labels": {"looked": "at"}}}
            await client.merge_patch(PROFILES.object("c-mid"), note)
            await asyncio.sleep(2)  # the look after that has nothing to write
            assert len(_writes(recorder)) == count
        assert [f"{one.verb} {one.path}" for one in recorder.refused] == []

    async def in_force() -> bool:
        found = await admitted(client, CASES["mid"])
        return bool(found["metadata"]["labels"].get("name") == "n-mid")

    await until(in_force)
    await asyncio.sleep(2)  # all policies are read at about the same time
    assert await differences(client, [profile(name) for name in PROFILE_SPECS]) == {}


async def differences(client: ApiClient, items: list[dict[str, Any]]) -> dict[str, Any]:
    """What the server makes of the cases and the plain mutation does not, by case and part."""
    profiles = [parse_profile(one) for one in items]
    classes = {name: PriorityClass(value) for name, value in VALUES.items()}
    # What the server makes of a pod before its policies: defaults and its priority.
    differ: dict[str, Any] = {}
    for name, item in CASES.items():
        found = compared(await admitted(client, item))
        submitted = _defaulted(item)
        expected = compared(mutate(submitted, {"enable-colocation": "true"}, profiles, classes,
                                   lambda: 0))  # fmt: skip
        if found != expected:
            differ[name] = {
                key: (found.get(key), expected.get(key))
                for key in found.keys() | expected.keys()
                if found.get(key) != expected.get(key)
            }
    return differ


def _writes(recorder: Recorder) -> list[Any]:
    return [one for one in recorder.requests
            if one.method in ("POST", "PUT") and "admissionpolic" in one.path]  # fmt: skip


def _defaulted(item: dict[str, Any]) -> dict[str, Any]:
    """The pod as it comes to the policies: requests by limits, and a priority by its class."""
    made = copy.deepcopy(item)
    for one in (*made["spec"]["containers"], *made["spec"].get("initContainers", ())):
        resources = one.setdefault("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    spec = made["spec"]
    spec |= {
        "priority": VALUES.get(spec.get("priorityClassName"), 0),
        "preemptionPolicy": "PreemptLowerPriority",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
    }
    return made


async def test_a_pod_s_overhead_is_its_runtime_class_s(
    client: ApiClient, cluster: str, own_plane: ControlPlane
) -> None:
    """Why overhead is not translated: the server refuses a pod with any other."""
    item = {"metadata": {"name": "sandboxed"}, "handler": "x",
            "overhead": {"podFixed": {"cpu": "250m"}}}  # fmt: skip
    await client.create(RUNTIME_CLASSES.collection(), item)
    try:
        with pytest.raises(ApiError, match="Overhead doesn't match"):
            await admitted(
                client, pod({}, runtimeClassName="sandboxed", overhead={BATCH_CPU: "250"})
            )
    finally:
        await client.delete(RUNTIME_CLASSES.object("sandboxed"))


async def test_pods_are_refused_by_rules(
    own_plane: ControlPlane, client: ApiClient, cluster: str, tmp_path: Path
) -> None:
    """By the policy that the manager has written, after it has stopped."""

    async def has() -> bool:
        return "koord-manager-pod-qos" in await names(client, RULE_BINDINGS)

    async with (
        Recorder(own_plane.config) as recorder,
        running_manager(tmp_path, recorder.url, token=cluster),
    ):
        await until(has)

    async def refused() -> bool:
        try:
            await admitted(client, pod({"koordinator.sh/qosClass": "BE"}))
        except KubeError as err:
            return "cannot be used in combination" in str(err)
        return False

    await until(refused)


async def test_the_webhook_does_the_same_and_more(
    own_plane: ControlPlane, client: ApiClient, cluster: str, tmp_path: Path, kubectl: Any
) -> None:
    """In place of policies, which go; and a pod is made when the webhook is away.

    With a certificate that the manager keeps, by the rights of its manifests; what somebody makes
    of its caBundle is taken back.
    """
    more = profile("d-not-applied")
    more["metadata"]["name"] = "drawn"
    more["spec"] = {
        "selector": {"matchLabels": {"wants": "draw"}}, "probability": 99, "labels": {"a": "b"}
    }  # fmt: skip
    items = [*map(profile, PROFILE_SPECS), more]
    for one in items:
        await client.create(PROFILES.collection(), one)
    port = free_port()
    component = REPOSITORY / "deploy/manager/webhook"
    service, shipped = yaml.safe_load_all((component / "webhook.yaml").read_text())
    [webhook] = shipped["webhooks"]
    # No proxy forwards a Service here: this one is the manager under the Service's name.
    webhook["clientConfig"]["service"]["port"] = port
    service["spec"] = {
        "type": "ExternalName",
        "externalName": "localhost",
        "ports": [{"name": "webhook", "port": port}],
    }
    manifests = [service, shipped]
    rights = [
        ROLES.object("koord-manager"),
        NAMESPACED_ROLES.object("koord-manager", namespace=NAMESPACE),
    ]
    roles = [await client.get(path) for path in rights]
    patches = yaml.safe_load((component / "kustomization.yaml").read_text())["patches"]
    for path, patch in zip(rights, patches, strict=False):
        await client.json_patch(path, yaml.safe_load(patch["patch"]))
    await asyncio.to_thread(kubectl.apply, manifests)
    flag = f"--webhook-bind-address=127.0.0.1:{port}"
    try:
        async with Recorder(own_plane.config) as recorder:
            async with running_manager(tmp_path, recorder.url, flag, token=cluster):

                async def in_force() -> bool:
                    found = await admitted(client, pod({"wants": "draw"}))
                    return bool(found["metadata"]["labels"].get("a") == "b")

                await until(in_force)
                assert await differences(client, items) == {}
                assert await names(client, POLICIES) == set()
                await _edit_bundle(client)
                await until(in_force)
            assert [f"{one.verb} {one.path}" for one in recorder.refused] == []
        found = await admitted(client, CASES["mid"])
        assert found["metadata"]["labels"] == CASES["mid"]["metadata"]["labels"]
    finally:
        await asyncio.to_thread(kubectl.delete, manifests)
        with contextlib.suppress(NotFound):
            await client.delete(SECRETS.object("koord-manager-webhook", namespace=NAMESPACE))
        for path, role in zip(rights, roles, strict=True):
            await client.merge_patch(path, {"rules": role["rules"]})


async def _edit_bundle(client: ApiClient) -> None:
    """Have the API server trust another; return when the manager has taken that back."""
    path = WEBHOOKS.object("koord-manager")
    [before] = (await client.get(path))["webhooks"]
    place = "/webhooks/0/clientConfig/caBundle"
    await client.json_patch(path, [{"op": "remove", "path": place}])

    async def taken_back() -> bool:
        [found] = (await client.get(path))["webhooks"]
        return bool(found == before)

    await until(taken_back)


def asks(
    after: dict[str, Any], before: dict[str, Any] | None = None, priority: int | None = None
) -> dict[str, Any]:
    """A request about a pod; before None: it is created."""

    def made(item: dict[str, Any]) -> dict[str, Any]:
        spec = {**item["spec"], **({} if priority is None else {"priority": priority})}
        meta = {**item["metadata"], "namespace": "shop"}
        return {**item, "metadata": meta, "spec": spec}

    return {
        "user": "jane",
        "operation": "CREATE" if before is None else "UPDATE",
        "version": "v1",
        "kind": "Pod",
        "resource": "pods",
        "namespace": "shop",  # the one that the program has
        "name": "p",
        "object": made(after),
        "oldObject": None if before is None else made(before),
    }


def of(qos: str | None = None, priority: int | None = None, sub: str = "", **asked: str) -> Any:
    labels = {} if qos is None else {"koordinator.sh/qosClass": qos}
    if sub:
        labels["koordinator.sh/priority"] = sub
    found = pod(labels, amounts(**{name.replace("__", "/"): one for name, one in asked.items()}))
    if priority is not None:
        found["spec"]["priority"] = priority
    return found


BATCH = {"kubernetes.io/batch-cpu": "1k"}
COMBINED, FIXED = "cannot be used in combination", "field is immutable"


@pytest.mark.parametrize(
    ("after", "before", "text"),
    [
        pytest.param(of("LS", 5000), of("BE", 5000), FIXED, id="V1: QoS changes"),
        pytest.param(of(None, 5000), of("BE", 5000), FIXED, id="V1: QoS goes"),
        pytest.param(of(None, 9999), of(None, 5000), FIXED, id="V2: another class"),
        pytest.param(of(None, 5999), of(None, 5000), "", id="V2: the same class"),
        pytest.param(of(None), of(None, 5000), FIXED, id="V2: the class goes"),
        pytest.param(of(sub="8888"), of(sub="9999"), FIXED, id="V3"),
        pytest.param(of("BE", 5000, **BATCH), None, "", id="V4"),
        pytest.param(of(None, 5000, **BATCH), None, "must specify koordinator QoS BE", id="V5"),
        pytest.param(of("BE", 9999), None, COMBINED, id="V6"),
        pytest.param(of("BE"), None, COMBINED, id="V6: without a class"),
        pytest.param(of("LSR", 9999, cpu="1"), None, "", id="V7"),
        pytest.param(of("LSR", 5000, cpu="1"), None, COMBINED, id="V8: batch"),
        pytest.param(of("LSR", 7000, cpu="1"), None, COMBINED, id="V8: mid"),
        pytest.param(of("LSR", 3000, cpu="1"), None, COMBINED, id="V8: free"),
        pytest.param(of("LSR", 9999), None, "must declare the requested CPUs", id="V9: none"),
        pytest.param(of("LSR", 9999, cpu="100m"), None, "must be integer", id="V9: a part"),
        pytest.param(of("LSE", 9999, cpu="1500m"), None, "must be integer", id="V9: LSE"),
        pytest.param(of("LS", 7500), None, "", id="LS and mid"),
        pytest.param(of("SYSTEM"), None, "", id="SYSTEM"),
        pytest.param(of("nonsense"), None, "", id="no QoS"),
        pytest.param(of(), None, "", id="a pod of Kubernetes"),
        pytest.param(of("BE", 9999), of("BE", 9999), "", id="one from before loses a finalizer"),
    ],
)
def test_rules_of_qos_and_priority(after: Any, before: Any, text: str, go_program: Any) -> None:
    """The worked cases, as Kubernetes' own plugin decides by the policy."""
    found = decided(qos_policy(), go_program, asks(after, before))

    assert (text in found) if text else found == "", found


def test_v3_a_sub_priority_changes_with_the_gate(go_program: Any) -> None:
    question = asks(of(sub="8888"), of(sub="9999"))

    assert decided(qos_policy(sub_priority_is_fixed=False), go_program, question) == ""


PRIORITIES = {"none": None, "prod": 9500, "mid": 7500, "batch": 5500, "free": 3500}
FORBIDDEN = {"LSR": {"none", "mid", "batch", "free"}, "BE": {"none", "prod"}}


@pytest.mark.parametrize("qos", [None, "LSE", "LSR", "LS", "BE", "SYSTEM"])
def test_qos_and_class_go_together_as_in_the_matrix(qos: str | None, go_program: Any) -> None:
    """Of pods with whole CPUs and without batch resources."""
    refused = set()
    for name, priority in PRIORITIES.items():
        found = decided(qos_policy(), go_program, asks(of(qos, priority, cpu="2")))
        assert found == "" or COMBINED in found
        refused |= {name} if found else set()

    assert refused == FORBIDDEN.get(qos or "", set())


@pytest.mark.parametrize(
    ("asked", "is_allowed"),
    [
        ({"gpu": "200"}, True),
        ({"gpu": "150"}, False),
        ({"gpu": "0"}, False),
        ({"gpu": "50"}, True),
        ({"gpu": "100", "gpu.shared": "1"}, False),
        ({"gpu.shared": "0", "gpu-memory": "1Gi"}, False),
        ({"gpu.shared": "2", "gpu-core": "100", "gpu-memory-ratio": "100"}, True),
        ({"gpu.shared": "2", "gpu-core": "101", "gpu-memory-ratio": "100"}, False),
        ({"gpu.shared": "1", "gpu-memory": "1Gi", "gpu-memory-ratio": "50"}, False),
        ({"gpu.shared": "1"}, False),
        ({}, True),
    ],
)
def test_rules_of_gpus(asked: dict[str, str], is_allowed: bool, go_program: Any) -> None:
    named = {f"koordinator.sh/{name}": amount for name, amount in asked.items()}
    found = decided(device_rules_policy(), go_program, asks(pod({}, amounts(**named))))

    assert (found == "") == is_allowed, found


def test_a_pod_with_the_mark_of_reservations_is_refused(go_program: Any) -> None:
    item = pod({})
    item["metadata"]["annotations"] = {"scheduling.koordinator.sh/reserve-pod": "true"}

    assert "cannot set in annotations" in decided(qos_policy(), go_program, asks(item))


def decided(policy: list[dict[str, Any]], go_program: Any, request: dict[str, Any]) -> str:
    question = {
        "policy": policy[0],
        "binding": policy[1],
        "roles": [],
        "roleBindings": [],
        "requests": [request],
    }
    [found] = ask(go_program(ADMISSION), question)
    return found
