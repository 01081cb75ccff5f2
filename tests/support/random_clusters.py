"""Random small clusters as JSON, for rules and their plain forms."""

from typing import Any

from hypothesis import strategies as st

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
    volume,
)

HOSTNAME = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
KEYS = ("zone", "rack", "size")
VALUES = ("a", "b", "1", "5", "-3", "+7", "9999999999999999999999")
NODES = tuple(f"n{number}" for number in range(6))
NAMESPACES = ("default", "other", "third")

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
pod_labels = st.dictionaries(st.sampled_from(("app", "hash")), st.sampled_from("xy"), max_size=2)
effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))


def sometimes(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


def without_none(found: Json) -> Json:
    return {key: value for key, value in found.items() if value is not None}


taints = st.fixed_dictionaries(
    {"key": st.sampled_from("kl"), "effect": effects, "value": st.sampled_from(("", "v"))}
)
tolerations = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(("k", "l", "", "node.kubernetes.io/unschedulable")),
        "operator": st.sampled_from(("Exists", "Equal")),
        "value": st.sampled_from(("", "v")),
        "effect": effects,
    },
)
number = st.sampled_from(("0", "3", "-5"))
node_expressions = st.one_of(
    st.builds(
        lambda key, operator, values: expression(key, operator, *values),
        st.sampled_from(KEYS),
        st.sampled_from(("In", "NotIn")),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
    ),
    st.builds(expression, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))),
    st.builds(expression, st.sampled_from(KEYS), st.sampled_from(("Gt", "Lt")), number),
)
node_fields = st.builds(
    expression,
    st.just("metadata.name"),
    st.sampled_from(("In", "NotIn")),
    st.sampled_from(NODES),
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(node_expressions, max_size=2),
        "matchFields": st.lists(node_fields, max_size=1),
    },
)
selectors = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": pod_labels,
        "matchExpressions": st.lists(
            st.builds(expression, st.just("app"), st.sampled_from(("Exists", "DoesNotExist")))
            | st.builds(expression, st.just("app"), st.sampled_from(("In", "NotIn")), st.just("x")),
            max_size=1,
        ),
    },
)
namespace_selectors = st.one_of(st.just({}), st.just({"matchLabels": {"team": "red"}}))
affinity_terms = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from((*KEYS, HOSTNAME))},
    optional={
        "labelSelector": selectors,
        "namespaces": st.lists(st.sampled_from(NAMESPACES), max_size=2),
        "namespaceSelector": namespace_selectors,
    },
)
preferences = st.fixed_dictionaries(
    {"weight": st.integers(1, 100), "podAffinityTerm": affinity_terms}
)
spreads = st.fixed_dictionaries(
    {
        "topologyKey": st.sampled_from((*KEYS, HOSTNAME)),
        "maxSkew": st.integers(1, 2),
        "whenUnsatisfiable": st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
    },
    optional={
        "labelSelector": selectors,
        "minDomains": st.integers(1, 3),
        "nodeAffinityPolicy": st.sampled_from(("Honor", "Ignore")),
        "nodeTaintsPolicy": st.sampled_from(("Honor", "Ignore")),
        "matchLabelKeys": st.lists(st.sampled_from(("hash", "none")), max_size=2),
    },
)
host_ports = st.fixed_dictionaries(
    {"hostPort": st.integers(0, 2)},
    optional={
        "protocol": st.sampled_from(("TCP", "UDP")),
        "hostIP": st.sampled_from(("", "0.0.0.0", "10.0.0.1", "10.0.0.2")),
    },
)
requests = st.dictionaries(
    st.sampled_from(("cpu", "memory", "example.com/gpu")), st.integers(0, 3), max_size=3
)


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    affinity: Json = {}
    required = draw(sometimes(st.lists(terms, max_size=2)))
    if required is not None:
        affinity |= node_affinity(*required)
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = near(kind, *draw(st.lists(affinity_terms, max_size=2)))
        rules[kind][PREFERRED] = draw(st.lists(preferences, max_size=2))
        affinity |= rules
    names = draw(
        st.lists(st.sampled_from(("bound", "free", "lost", "unknown", "wide")), max_size=1)
    )
    obj = pod(
        name,
        draw(st.sampled_from((*NODES, "unknown"))),
        draw(pod_labels),
        draw(requests),
        draw(st.sampled_from(NAMESPACES)),
        affinity=affinity,
        tolerations=draw(st.lists(tolerations, max_size=2)),
        nodeSelector=draw(st.one_of(st.just({}), labels)),
        topologySpreadConstraints=draw(st.lists(spreads, max_size=2)),
        ports=draw(st.lists(host_ports, max_size=1)),
        volumes=[{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in names],
    )
    return draw(st.sampled_from((obj, obj, obj, finished(obj), deleting(obj))))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    room = st.dictionaries(
        st.sampled_from(("cpu", "memory", "pods", "example.com/gpu")), st.integers(0, 6)
    )
    return Cluster(
        nodes=[
            node(
                name,
                draw(labels),
                draw(room),
                taints=draw(st.lists(taints, max_size=1)),
                unschedulable=draw(st.booleans()),
            )
            for name in NODES[: draw(st.integers(0, len(NODES)))]
        ],
        pods=[draw(pods(f"p{at}")) for at in range(draw(st.integers(0, 5)))],
        claims=[
            claim("bound", "disk"),
            claim("free"),
            claim("lost", "nowhere"),
            claim("wide", "wide"),
        ],
        volumes=[volume("disk", draw(terms), draw(terms)), volume("wide")],
        namespaces=[named("default", {"team": "red"}), named("third", {"team": "blue"})],
    )
