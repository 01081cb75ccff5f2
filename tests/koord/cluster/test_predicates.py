"""The rules of Kubernetes as its documentation states them, on clusters that one can picture."""

from typing import Any

import pytest

from koord.cluster.predicates import Fit, NodeRejectReason, fits
from tests.support.clusters import (
    Cluster,
    Json,
    claim,
    deleting,
    expression,
    finished,
    named,
    near,
    node,
    node_affinity,
    pod,
    read_pod,
    term,
    volume,
)

HOST = "kubernetes.io/hostname"
WEB = {"app": "web"}


def ask(cluster: Cluster, incoming: Json) -> Fit:
    return fits(read_pod(incoming), cluster.snapshot().view())


def allowed(cluster: Cluster, incoming: Json) -> list[str]:
    """Names of the nodes that fit."""
    found = ask(cluster, incoming)
    return [
        obj["metadata"]["name"] for obj, fine in zip(cluster.nodes, found.mask, strict=True) if fine
    ]


def reason(cluster: Cluster, incoming: Json) -> NodeRejectReason:
    """Why the first node does not fit."""
    return NodeRejectReason(ask(cluster, incoming).misfits[0])


@pytest.mark.parametrize(
    ("requests", "fine"),
    [
        ({"cpu": "1500m"}, True),
        ({"cpu": "1501m"}, False),
        ({"memory": "2Gi"}, True),
        ({"memory": "2147483649"}, False),
        ({"example.com/gpu": "1"}, True),
        ({"example.com/gpu": "2"}, False),
        ({"example.com/none": "0"}, True),
        ({"example.com/none": "1"}, False),
        ({}, True),
    ],
)
def test_a_pod_needs_room_for_each_resource_it_requests(requests: Json, fine: bool):
    """Requests of the pods that are there count; zero is always there, what is not there is 0."""
    room = {"cpu": "2", "memory": "4Gi", "pods": "10", "example.com/gpu": "2"}
    used = {"cpu": "500m", "memory": "2Gi", "example.com/gpu": "1"}
    cluster = Cluster([node("n", allocatable=room)], [pod("a", "n", requests=used)])

    assert (allowed(cluster, pod("new", requests=requests)) == ["n"]) is fine


def test_a_node_is_full_when_it_has_as_many_pods_as_it_may():
    """Finished pods take no place."""
    cluster = Cluster([node("n", allocatable={"pods": "2"})], [pod("a", "n"), pod("b", "n")])
    assert reason(cluster, pod("new")) is NodeRejectReason.RESOURCES

    cluster.pods[1] = finished(cluster.pods[1])
    assert allowed(cluster, pod("new")) == ["n"]


def test_a_node_without_capacity_takes_no_pod():
    """Not even one that requests nothing."""
    assert reason(Cluster([node("n", allocatable={})]), pod("new")) is NodeRejectReason.RESOURCES


def test_requests_are_those_of_the_whole_pod():
    """Init containers run alone beside the sidecars before them; overhead comes on top."""

    def container(cpu: str, **more: Any) -> Json:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    obj = pod("p", containers=[container("200m"), container("300m")])
    obj["spec"]["initContainers"] = [
        container("100m", restartPolicy="Always"),
        container("700m"),
        container("50m", restartPolicy="Always"),
    ]
    assert dict(read_pod(obj).spec.requests) == {"cpu": 800}

    obj["spec"] |= {"overhead": {"cpu": "10m", "memory": "1Mi"}}
    assert dict(read_pod(obj).spec.requests) == {"cpu": 810, "memory": 1 << 20}

    obj["spec"] |= {"resources": {"requests": {"cpu": "2"}}}
    assert dict(read_pod(obj).spec.requests) == {"cpu": 2010, "memory": 1 << 20}


@pytest.mark.parametrize(
    ("taint", "tolerations", "fine"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, [], False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, [], False),
        ({"key": "k", "value": "v", "effect": "PreferNoSchedule"}, [], True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, [{"key": "k", "value": "v"}], True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, [{"key": "k", "value": "w"}], False),
        (
            {"key": "k", "effect": "NoSchedule"},
            [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
            False,
        ),
        ({"key": "k", "effect": "NoSchedule"}, [{"operator": "Exists"}], True),
    ],
)
def test_taints_must_be_tolerated(taint: Json, tolerations: list[Json], fine: bool):
    cluster = Cluster([node("n", taints=[taint])])
    incoming = pod("new", tolerations=tolerations)

    assert reason(cluster, incoming) is (NodeRejectReason.NONE if fine else NodeRejectReason.TAINTS)


def test_a_cordoned_node_takes_only_pods_that_tolerate_that():
    cluster = Cluster([node("n", unschedulable=True)])
    tolerant = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}

    assert reason(cluster, pod("new")) is NodeRejectReason.UNSCHEDULABLE
    assert allowed(cluster, pod("new", tolerations=[tolerant])) == ["n"]


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        (expression("size", "In", "5", "7"), ["b"]),
        (expression("size", "NotIn", "5"), ["a", "none", "text"]),
        (expression("size", "Exists"), ["a", "b", "text"]),
        (expression("size", "DoesNotExist"), ["none"]),
        (expression("size", "Gt", "3"), ["b"]),
        (expression("size", "Lt", "3"), ["a"]),
        (expression("size", "Gt", "many"), []),
        (expression("size", "Maybe", "5"), []),
        (expression("size", "In"), []),
    ],
)
def test_operators_of_node_affinity(wanted: Json, nodes: list[str]):
    """NotIn is true of an absent label, Gt and Lt only of numbers; what is malformed matches no
    node."""
    sizes = {"a": "-2", "b": "5", "text": "large"}
    cluster = Cluster([node(name, {"size": size}) for name, size in sizes.items()] + [node("none")])
    incoming = pod("new", affinity=node_affinity({"matchExpressions": [wanted]}))

    assert sorted(allowed(cluster, incoming)) == nodes


@pytest.mark.parametrize(
    ("terms", "nodes"),
    [
        ([], []),
        ([{}], []),
        ([{}, {"matchFields": [expression("metadata.name", "In", "a")]}], ["a"]),
        ([{"matchFields": [expression("metadata.name", "NotIn", "a")]}], ["b"]),
        ([{"matchFields": [expression("metadata.uid", "In", "uid-a")]}], []),
    ],
)
def test_terms_of_node_affinity_are_alternatives(terms: list[Json], nodes: list[str]):
    """Without any, or with empty ones only, no node matches; the name is the only field."""
    cluster = Cluster([node("a"), node("b")])

    assert allowed(cluster, pod("new", affinity=node_affinity(*terms))) == nodes


def test_node_selector_and_affinity_must_both_match():
    cluster = Cluster([node("a", {"disk": "ssd"}), node("b", {"disk": "ssd"}), node("c")])
    field = {"matchFields": [expression("metadata.name", "NotIn", "a")]}
    incoming = pod("new", nodeSelector={"disk": "ssd"}, affinity=node_affinity(field))

    assert allowed(cluster, incoming) == ["b"]


@pytest.mark.parametrize(
    ("there", "fine"),
    [
        ({"hostPort": 80}, False),
        ({"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 81}, True),
        ({"containerPort": 80}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, False),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, False),
    ],
)
def test_a_host_port_can_be_taken_once(there: Json, fine: bool):
    cluster = Cluster([node("n")], [pod("a", "n", ports=[there])])
    incoming = pod("new", ports=[{"hostPort": 80, "hostIP": "10.0.0.1"}])

    assert reason(cluster, incoming) is (
        NodeRejectReason.NONE if fine else NodeRejectReason.HOST_PORTS
    )


ZONES = [node("a1", {"zone": "a"}), node("a2", {"zone": "a"}), node("b1", {"zone": "b"})]


def test_affinity_follows_pods_into_their_domain():
    """A node that lacks the label is in no domain."""
    cluster = Cluster([*ZONES, node("nowhere")], [pod("w", "a1", WEB)])

    assert allowed(cluster, pod("new", affinity=near("podAffinity", term("zone", WEB)))) == [
        "a1",
        "a2",
    ]


def test_one_pod_must_satisfy_all_affinity_terms():
    cluster = Cluster(ZONES, [pod("w", "a1", WEB), pod("d", "a1", {"app": "db"})])
    both = near("podAffinity", term("zone", WEB), term("zone", {"app": "db"}))

    assert reason(cluster, pod("new", affinity=both)) is NodeRejectReason.POD_AFFINITY


def test_the_first_of_a_group_may_go_anywhere_with_the_label():
    """Only when its own terms mean it, and no pod they mean is there."""
    cluster = Cluster([*ZONES, node("nowhere")])
    together = near("podAffinity", term("zone", WEB))

    assert allowed(cluster, pod("new", labels=WEB, affinity=together)) == ["a1", "a2", "b1"]
    assert allowed(cluster, pod("new", affinity=together)) == []
    cluster.pods.append(pod("w", "b1", WEB))
    assert allowed(cluster, pod("new", labels=WEB, affinity=together)) == ["b1"]


def test_anti_affinity_keeps_out_of_the_domain():
    cluster = Cluster([*ZONES, node("nowhere")], [pod("w", "a1", WEB)])
    apart = near("podAntiAffinity", term("zone", WEB))

    assert allowed(cluster, pod("new", affinity=apart)) == ["b1", "nowhere"]


def test_anti_affinity_of_pods_that_are_there_counts_too():
    lonely = pod("lonely", "a1", affinity=near("podAntiAffinity", term("zone", WEB)))
    cluster = Cluster([*ZONES, node("nowhere")], [lonely])

    assert allowed(cluster, pod("new", labels=WEB)) == ["b1", "nowhere"]
    assert reason(cluster, pod("new", labels=WEB)) is NodeRejectReason.POD_ANTI_AFFINITY
    assert len(allowed(cluster, pod("new"))) == 4
    cluster.pods[0] = finished(lonely)
    assert len(allowed(cluster, pod("new", labels=WEB))) == 4


@pytest.mark.parametrize(
    ("more", "fine"),
    [
        ({}, True),
        ({"namespaces": ["shop"]}, False),
        ({"namespaces": ["default"]}, True),
        ({"namespaceSelector": {}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "red"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, True),
        ({"namespaceSelector": {"matchExpressions": [expression("team", "DoesNotExist")]}}, True),
        ({"namespaceSelector": {"matchExpressions": [expression("env", "DoesNotExist")]}}, False),
        ({"namespaceSelector": {"matchExpressions": [expression("team", "NotIn", "red")]}}, True),
        ({"namespaces": ["shop"], "namespaceSelector": {"matchLabels": {"team": "blue"}}}, False),
    ],
)
def test_namespaces_of_an_affinity_term(more: Json, fine: bool):
    """Its own by default; those named and those selected together; {} selects all."""
    shop = pod("w", "n", WEB, namespace="shop")
    cluster = Cluster([node("n")], [shop], namespaces=[named("shop", {"team": "red"})])
    incoming = pod("new", affinity=near("podAntiAffinity", term(HOST, WEB, **more)))

    assert reason(cluster, incoming) is (
        NodeRejectReason.NONE if fine else NodeRejectReason.POD_ANTI_AFFINITY
    )


def test_a_term_without_selector_means_no_pod():
    cluster = Cluster([node("n")], [pod("w", "n", WEB)])
    apart = near("podAntiAffinity", term(HOST, None))

    assert allowed(cluster, pod("new", affinity=apart)) == ["n"]


def constraint(**more: Any) -> Json:
    return {
        "topologyKey": "zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
        **more,
    }


def spread(cluster: Cluster, *constraints: Json, **spec: Any) -> list[str]:
    """The names of the nodes that a web pod with these constraints fits."""
    labels = {**WEB, "hash": "2"}
    return allowed(
        cluster, pod("new", labels=labels, topologySpreadConstraints=constraints, **spec)
    )


def test_spread_of_the_kubernetes_documentation():
    """Zones with 2 and 1 pods and a maximal skew of 1: the next one goes to the second."""
    cluster = Cluster(
        [*ZONES, node("b2", {"zone": "b"}), node("nowhere")],
        [pod("1", "a1", WEB), pod("2", "a2", WEB), pod("3", "b1", WEB)],
    )

    assert spread(cluster, constraint()) == ["b1", "b2"]
    assert spread(cluster, constraint(maxSkew=2)) == ["a1", "a2", "b1", "b2"]
    assert len(spread(cluster, constraint(whenUnsatisfiable="ScheduleAnyway"))) == 5
    assert spread(cluster, constraint(), constraint(topologyKey=HOST)) == ["b2"]


def test_spread_needs_as_many_domains_as_it_says():
    """With fewer than minDomains the emptiest domain counts as 0."""
    cluster = Cluster(ZONES, [pod("1", "a1", WEB), pod("2", "b1", WEB)])

    assert spread(cluster, constraint(minDomains=2)) == ["a1", "a2", "b1"]
    assert spread(cluster, constraint(minDomains=3)) == []


def test_spread_over_the_nodes_that_the_pod_may_use():
    """By default zone b, where the node selector forbids the only node, is no domain."""
    cluster = Cluster(
        [node("a", {"zone": "a", "disk": "ssd"}), node("b", {"zone": "b"})],
        [pod("1", "a", WEB)],
    )
    ssd = {"disk": "ssd"}

    assert spread(cluster, constraint(), nodeSelector=ssd) == ["a"]
    assert spread(cluster, constraint(nodeAffinityPolicy="Ignore"), nodeSelector=ssd) == []


def test_spread_over_tainted_nodes():
    """By default a tainted node is a domain, with Honor only one that the pod tolerates."""
    taint = {"key": "k", "effect": "NoSchedule"}
    cluster = Cluster(
        [node("a", {"zone": "a"}), node("b", {"zone": "b"}, taints=[taint])],
        [pod("1", "a", WEB)],
    )

    assert spread(cluster, constraint()) == []
    assert spread(cluster, constraint(nodeTaintsPolicy="Honor")) == ["a"]


def test_spread_of_one_revision():
    """matchLabelKeys counts only pods with the pod's own value."""
    cluster = Cluster(ZONES, [pod("1", "a1", {**WEB, "hash": "1"})])

    assert spread(cluster, constraint()) == ["b1"]
    assert spread(cluster, constraint(matchLabelKeys=["hash"])) == ["a1", "a2", "b1"]


@pytest.mark.parametrize("change", [deleting, finished])
def test_spread_does_not_count_pods_that_end(change: Any):
    cluster = Cluster(ZONES, [change(pod("1", "a1", WEB))])

    assert spread(cluster, constraint()) == ["a1", "a2", "b1"]


def test_bound_volumes_say_where_a_pod_may_run():
    """What is not known is out of reach; a claim that is not bound allows every node."""
    zone = {"matchExpressions": [expression("zone", "In", "a")]}
    cluster = Cluster(
        ZONES,
        claims=[
            claim("data", "disk"),
            claim("free"),
            claim("lost", "nothing"),
            claim("nfs", "nfs"),
        ],
        volumes=[volume("disk", zone), volume("nfs")],
    )

    def using(*names: str) -> list[str]:
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
        return allowed(cluster, pod("new", volumes=volumes))

    assert using("data", "free", "nfs") == ["a1", "a2"]
    assert using("free") == using("nfs") == ["a1", "a2", "b1"]
    assert using("lost") == using("unknown") == []
    ephemeral = pod("data", volumes=[{"name": "x", "ephemeral": {"volumeClaimTemplate": {}}}])
    cluster.claims.append(claim("data-x", "disk"))
    assert allowed(cluster, ephemeral) == ["a1", "a2"]


def test_the_reason_is_the_first_rule_that_forbids():
    """In the order in which Kubernetes asks them."""
    taint = {"key": "k", "effect": "NoSchedule"}
    cluster = Cluster([node("n", allocatable={}, taints=[taint], unschedulable=True)])

    assert reason(cluster, pod("new")) is NodeRejectReason.UNSCHEDULABLE
    del cluster.nodes[0]["spec"]["unschedulable"]
    assert reason(cluster, pod("new")) is NodeRejectReason.TAINTS
    del cluster.nodes[0]["spec"]["taints"]
    assert reason(cluster, pod("new")) is NodeRejectReason.RESOURCES


def test_an_empty_cluster_has_no_node_that_fits():
    """Masks have no rows."""
    incoming = pod("new", labels=WEB, topologySpreadConstraints=[constraint()])

    assert allowed(Cluster(), incoming) == []
