"""The shipped admission policy, as Kubernetes' own plugin decides by it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord.api.pod import Pod
from koord.kube.authorization import check_own_node
from koord.kube.client import NODE_METRICS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.events import Event, EventType, ObjectRef, Series, new_event
from koord.kube.eviction import eviction
from koord.kube.transport import Transport
from koord.util.clock import SystemClock
from tests.support.deploy.overlay import overlay
from tests.support.programs import ADMISSION, ask
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import TIMEOUT

WEB = Pod("shop", "web", "u1")
HAPPENED = Event(
    ObjectRef("v1", "Pod", "web", "shop", "u1"), EventType.WARNING, "why", "what", "us"
)
AGENT = "the agent"  # stands for the DaemonSet's ServiceAccount
KOORDINATORS = "system:serviceaccount:koordinator-system:koordlet"
MANAGER = "system:serviceaccount:koordinator-system:koord-manager"
ARGO = "system:serviceaccount:argocd:argocd-application-controller"
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
NODE_CLAIM = "authentication.kubernetes.io/node-name"
SLO, TOPOLOGY = "slo.koordinator.sh", "topology.node.k8s.io"
SCHEDULING = "scheduling.koordinator.sh"
METRIC, NODE_SLO, ZONES, EVENT = "NodeMetric", "NodeSLO", "NodeResourceTopology", "Event"
PLURALS = {
    METRIC: "nodemetrics",
    NODE_SLO: "nodeslos",
    ZONES: "noderesourcetopologies",
    "Device": "devices",
    EVENT: "events",
    "Eviction": "pods",
}


def bound(role: str, account: str) -> dict[str, Any]:
    """A ClusterRoleBinding of one service account."""
    _, _, namespace, name = account.split(":")
    return {
        "metadata": {"name": f"{role}-of-{name}"},
        "roleRef": {**ROLE, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def asks(
    operation: str,
    kind: str,
    name: str,
    *,
    group: str = SLO,
    user: str = AGENT,
    node: str = "n1",
    subresource: str = "",
    namespace: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """A request of an agent on node n1, unless said otherwise; fields are those of the object."""
    written = {"metadata": {"name": name, "namespace": namespace}, **fields}
    return {
        "user": user,
        "extra": {NODE_CLAIM: [node]} if node else {},
        "operation": operation,
        "group": group,
        "version": "v1alpha1" if group in (SLO, TOPOLOGY, SCHEDULING) else "v1",
        "kind": kind,
        "kindGroup": "policy" if kind == "Eviction" else group,
        "resource": PLURALS[kind],
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
        "object": None if operation == "DELETE" else written,
        "oldObject": None if operation == "CREATE" else written,
    }


def evicts(preconditions: dict[str, str], **others: Any) -> dict[str, Any]:
    options = {"preconditions": preconditions}
    return asks(
        "CREATE", "Eviction", "web", group="", subresource="eviction", namespace="shop",
        deleteOptions=options, **others,
    )  # fmt: skip


def of_the_daemon(operation: str, written: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A request with an object that the daemon's own code has made."""
    asked = asks(operation, written["kind"], "web", group="", namespace="shop", **others)
    return {**asked, "object": written}


def event_of(host: str, *, operation: str = "CREATE", **others: Any) -> dict[str, Any]:
    return asks(
        operation, EVENT, "web.17", group="", namespace="shop", source={"host": host}, **others
    )


# What a user may do to the manifests on the way to the cluster.
OVERLAYS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "another namespace": {"namespace": "qos"},
    "all renamed": {
        "namespace": "qos",
        "namePrefix": "acme-",
        "nameSuffix": "-v2",
        "labels": [{"pairs": {"app.kubernetes.io/name": "qos"}, "includeSelectors": True}],
    },
}
# The same with Helm: values of the chart.
RELEASES: dict[str, dict[str, Any]] = {
    "by Helm": {},
    "by Helm, another namespace": {"installation": {"namespace": "qos"}},
}


@pytest.fixture(scope="session")
def plugin(go_program: Any) -> Path:
    """The program that asks Kubernetes' plugin."""
    binary: Path = go_program(ADMISSION)
    return binary


@pytest.fixture(params=[*OVERLAYS, *RELEASES])
def applied(
    request: pytest.FixtureRequest, render: Any, installed: Any, tmp_path: Path
) -> dict[str, list[dict[str, Any]]]:
    """The objects that reach the cluster, by kind."""
    objects: dict[str, list[dict[str, Any]]] = {}
    if request.param in RELEASES:
        made = installed(RELEASES[request.param])
    else:
        made = render(overlay(tmp_path, **OVERLAYS[request.param]))
    for each in made:
        objects.setdefault(each["kind"], []).append(each)
    return objects


@pytest.fixture
def decide(plugin: Path, applied: dict[str, list[dict[str, Any]]]) -> Any:
    """Ask the plugin about requests; it answers "" for an allowed one, else why not.

    Requests of the agent are those of the ServiceAccount that the DaemonSet runs as.
    """
    [policy] = applied["ValidatingAdmissionPolicy"]
    [binding] = applied["ValidatingAdmissionPolicyBinding"]
    [daemonset] = applied["DaemonSet"]
    account = daemonset["spec"]["template"]["spec"]["serviceAccountName"]
    agent = f"system:serviceaccount:{daemonset['metadata']['namespace']}:{account}"
    others = [bound("all", ARGO), bound("manager", MANAGER)]
    others.append({"metadata": {"name": "it"}, "roleRef": {**ROLE, "name": "it"}})  # of nobody
    rules = [
        ("all", ["*"], ["*"], ["*"]),
        ("manager", [SLO], ["nodemetrics", "nodeslos"], ["create", "update", "patch", "delete"]),
    ]
    roles = [
        {"metadata": {"name": name},
         "rules": [{"apiGroups": groups, "resources": resources, "verbs": verbs}]}
        for name, groups, resources, verbs in rules
    ]  # fmt: skip
    # A binding may lose what tools add to it: the rights alone make an agent.
    bindings = [
        {**each, "metadata": {"name": each["metadata"]["name"]}}
        for each in applied["ClusterRoleBinding"]
    ]

    def decide(*requests: dict[str, Any]) -> list[str]:
        question = {
            "policy": policy,
            "binding": binding,
            "roles": [*applied["ClusterRole"], *roles],
            "roleBindings": [*bindings, *others],
            "requests": [
                each | {"user": agent} if each["user"] == AGENT else each for each in requests
            ],
        }
        return ask(plugin, question)

    return decide


ALLOWED = {
    "status": asks("UPDATE", METRIC, "n1", subresource="status"),
    "create a NodeMetric": asks("CREATE", METRIC, "n1"),
    "delete a NodeMetric": asks("DELETE", METRIC, "n1"),
    "create a NodeSLO": asks("CREATE", NODE_SLO, "n1"),
    "update a NodeSLO": asks("UPDATE", NODE_SLO, "n1"),
    "create zones": asks("CREATE", ZONES, "n1", group=TOPOLOGY),
    "update zones": asks("UPDATE", ZONES, "n1", group=TOPOLOGY),
    "create devices": asks("CREATE", "Device", "n1", group=SCHEDULING),
    "update devices": asks("UPDATE", "Device", "n1", group=SCHEDULING),
    "event": event_of("n1"),
    "event again": event_of("n1", operation="UPDATE"),
    "evict by UID": evicts({"uid": "u1"}),
    "the daemon's event": of_the_daemon(
        "CREATE", new_event(HAPPENED, Series(0, 0, 1, "web.17"), "n1")
    ),
    "the daemon's eviction": of_the_daemon("CREATE", eviction(WEB, 30), subresource="eviction"),
    "the manager, any node": asks("CREATE", METRIC, "n2", user=MANAGER, node=""),
    "the manager, any event": event_of("n2", user=MANAGER, node=""),
    "Koordinator's own koordlet": evicts({}, user=KOORDINATORS),
    "an account that may do anything": asks("CREATE", METRIC, "n2", user=ARGO),
    "its evictions": evicts({}, user=ARGO),
    "kubectl drain": evicts({}, user="admin", node=""),
}
OTHERS = "of this node only"
FORBIDDEN = {
    "status": (asks("UPDATE", METRIC, "n2", subresource="status"), OTHERS),
    "create a NodeMetric": (asks("CREATE", METRIC, "n2"), "not n2"),
    "delete a NodeMetric": (asks("DELETE", METRIC, "n2"), OTHERS),
    "create a NodeSLO": (asks("CREATE", NODE_SLO, "n2"), OTHERS),
    "update a NodeSLO": (asks("UPDATE", NODE_SLO, "n2"), OTHERS),
    "create zones": (asks("CREATE", ZONES, "n2", group=TOPOLOGY), OTHERS),
    "update zones": (asks("UPDATE", ZONES, "n2", group=TOPOLOGY), OTHERS),
    "create devices": (asks("CREATE", "Device", "n2", group=SCHEDULING), OTHERS),
    "update devices": (asks("UPDATE", "Device", "n2", group=SCHEDULING), OTHERS),
    "delete devices": (asks("DELETE", "Device", "n2", group=SCHEDULING), OTHERS),
    "a name that only begins like it": (asks("UPDATE", METRIC, "n1-1"), OTHERS),
    "event of another node": (event_of("n2"), "events of this node only"),
    "event of no node": (asks("CREATE", EVENT, "e", group="", namespace="shop"), OTHERS),
    "change another's event": (event_of("n2", operation="UPDATE"), "events of this node only"),
    "take over another's event": (
        event_of("n1", operation="UPDATE") | {"oldObject": event_of("n2")["object"]},
        "events of this node only",
    ),
    "evict by name": (evicts({}), "by its UID only"),
    "a token without node": (asks("UPDATE", METRIC, "n1", node=""), "names no node"),
    "evict, token without node": (evicts({"uid": "u1"}, node=""), "names no node"),
}


def test_an_agent_may_write_what_belongs_to_its_node(decide: Any) -> None:
    """And who is no agent is not concerned, whatever the manifests became on the way."""
    answers = decide(*ALLOWED.values())

    assert dict(zip(ALLOWED, answers, strict=True)) == dict.fromkeys(ALLOWED, "")


def test_an_agent_may_not_write_what_belongs_to_another_node(decide: Any) -> None:
    """The message says why."""
    answers = decide(*(request for request, _ in FORBIDDEN.values()))

    for (case, (_, why)), answer in zip(FORBIDDEN.items(), answers, strict=True):
        assert why in answer, f"{case}: {answer or 'allowed'}"


async def test_the_doctor_finds_out_whether_the_policy_holds(
    recorder: Recorder, client: ApiClient, objects: ClusterObjects, accounts: Accounts,
    node_name: str,
) -> None:  # fmt: skip
    """By a dry run, which leaves the other node's object as it was."""
    metric = {"apiVersion": NODE_METRICS.api_version, "kind": METRIC}
    await objects.have(NODE_METRICS, f"{node_name}-other", metric)
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    before = await client.list(NODE_METRICS.collection())
    clock = SystemClock()
    token = await accounts.agent(node_name, policies=False)
    config = ApiConfig(server=recorder.url, source="the test", token=token)
    agent = ApiClient(Transport(config, clock), clock)

    async def until(holds: bool) -> str:  # the API server learns of a policy in its own time
        async with asyncio.timeout(TIMEOUT):
            while (  # noqa: ASYNC110
                found := await check_own_node(agent, node_name, clock)
            ).holds is not holds:
                await asyncio.sleep(0.1)
        return found.detail

    await until(holds=False)
    await accounts.agent(node_name)
    detail = await until(holds=True)
    await agent.close()
    recorder.refused.clear()

    assert OTHERS in detail
    assert (await client.list(NODE_METRICS.collection())).items == before.items
