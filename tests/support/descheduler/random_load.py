"""Random small clusters, and rounds on them without a daemon."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from koord.cluster import kinds
from koord_descheduler.plugin import ClusterPod, Migration, UsageReport
from koord_descheduler.plugin.testing import FakeCluster, make_node, make_pod, make_report
from koord_descheduler_plugins.low_node_load.args import LowNodeLoadArgs, Planner
from koord_descheduler_plugins.low_node_load.exact import ExactRound
from koord_descheduler_plugins.low_node_load.koordinator import KoordinatorRound
from koord_descheduler_plugins.low_node_load.plan import (
    ExactDetector,
    KoordinatorDetector,
    MoveResult,
    PlannedMove,
    PoolPlan,
    RejectReason,
    Round,
    RoundState,
    resume,
)
from koord_descheduler_plugins.low_node_load.usage import RoundInputs
from tests.support.descheduler.low_node_load import Json

NOW = 1_700_000_000.0


@dataclass
class RandomPod:
    name: str
    cpu: int | None  # milli-cores; None: the NodeMetric has no entry
    memory: int  # MiB
    request: int  # milli-cores
    prod: bool
    phase: str = "Running"
    deleting: bool = False
    near: bool = False  # excludes others of its kind from its node


@dataclass
class RandomNode:
    name: str
    cores: int
    pods: list[RandomPod]
    system: int  # milli-cores
    host: int = 0
    ghost: int = 0  # milli-cores of an entry whose pod is gone
    unschedulable: bool = False
    migrating: dict[str, str] = field(default_factory=dict)  # pod -> target


def node_of(one: RandomNode) -> Any:
    return make_node(one.name, cpu=one.cores, memory="64Gi", unschedulable=one.unschedulable)


def pod_of(pod: RandomPod, node: str) -> ClusterPod:
    requests = {"cpu": f"{pod.request}m"} if pod.request else {}
    spec: Json = {}
    if pod.near:
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "near"}},
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec = {"affinity": {"podAntiAffinity": required}}
    made = make_pod(
        pod.name,
        node=node,
        priority=9500 if pod.prod else 5500,
        phase=pod.phase,
        labels={"app": "near"} if pod.near else {},
        spec=spec,
        **requests,
    )
    return type(made)(
        **{name: getattr(made, name) for name in made.__struct_fields__ if name != "deleting"},
        deleting=pod.deleting,
    )


def report_of(one: RandomNode) -> UsageReport:
    pods: dict[str, Any] = {
        f"default/{pod.name}": {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}
        for pod in one.pods
        if pod.cpu is not None
    }
    if one.ghost:
        pods["default/ghost"] = {"cpu": f"{one.ghost}m", "memory": "1Mi"}
    made = make_report(
        one.name,
        at=NOW,
        usage={"cpu": 0, "memory": 0},
        system={"cpu": f"{one.system}m", "memory": "0"},
        pods=pods,
        status={
            "hostApplicationMetric": [
                {"usage": {"resources": {"cpu": f"{one.host}m", "memory": "0"}}}
            ]
        },
    )
    return replace(made, usage=None)


def inputs_of(nodes: list[RandomNode]) -> RoundInputs:
    cluster = FakeCluster()
    made = [node_of(one) for one in nodes]
    for node, one in zip(made, nodes, strict=True):
        cluster.state.put(kinds.NODE, node)
        for pod in one.pods:
            cluster.state.put(kinds.POD, pod_of(pod, one.name))
    return RoundInputs(
        view=cluster.state.view(),
        nodes=made,
        reports={one.name: report_of(one) for one in nodes},
        migrations=[
            Migration(pod=f"default/{pod}", uid=f"uid-default-{pod}", node=one.name, target=target)
            for one in nodes
            for pod, target in one.migrating.items()
        ],
        now=NOW,
    )


def round_of(
    inputs: RoundInputs, args: LowNodeLoadArgs, reject_reason: RejectReason = lambda pod: ""
) -> Round:
    if args.planner is Planner.KOORDINATOR:
        memory = RoundState(
            node_detector=KoordinatorDetector(300), prod_detector=KoordinatorDetector(300)
        )
        return KoordinatorRound(args, inputs, memory, reject_reason)
    memory = RoundState(node_detector=ExactDetector(300), prod_detector=ExactDetector(300))
    return ExactRound(args, inputs, memory, reject_reason, dry_run=False)


def carry_out(
    found: Round, refused: frozenset[str] = frozenset()
) -> list[tuple[PlannedMove, PoolPlan]]:
    """All moves of a round that are done."""
    done = []
    for plan in found.plans():
        steps = found.steps(plan)
        answer: MoveResult | None = None
        while (step := resume(steps, answer)) is not None:
            answer = None
            if isinstance(step, PlannedMove):
                answer = MoveResult.REFUSED if step.pod.name in refused else MoveResult.DONE
                if answer is MoveResult.DONE:
                    done.append((step, plan))
    return done


@st.composite
def random_nodes(draw: st.DrawFn, *, steady: bool = False) -> list[RandomNode]:
    """Up to six nodes. steady: every pod runs, is measured and stays."""
    seldom = st.sampled_from((False, False, False, False, False, not steady))
    milli = st.integers(0, 4000)
    found = []
    count = draw(st.sampled_from((2, 3, 4, 6)))
    names = [f"n{at}" for at in range(count)]
    for name in names:
        pods = [
            RandomPod(
                name=f"{name}-p{at}",
                cpu=None if draw(seldom) else draw(milli),
                memory=draw(st.sampled_from((0, 1000, 15_000))),
                request=draw(st.sampled_from((0, 100, 1000, 3000))),
                prod=draw(st.booleans()),
                phase="Succeeded" if draw(seldom) else "Running",
                deleting=draw(seldom),
                near=draw(st.booleans()) and draw(st.booleans()),
            )
            for at in range(draw(st.sampled_from((0, 0, 2, 4, 6))))
        ]
        movable = [pod.name for pod in pods]
        migrating = (
            {}
            if steady or not movable
            else draw(
                st.dictionaries(st.sampled_from(movable), st.sampled_from(("", *names)), max_size=1)
            )
        )
        found.append(
            RandomNode(
                name=name,
                cores=draw(st.sampled_from((6, 10, 16))),
                pods=pods,
                system=draw(st.sampled_from((0, 0, 500, 9000))),
                host=draw(st.sampled_from((0, 300))),
                ghost=draw(st.sampled_from((0, 700))),
                unschedulable=draw(st.integers(0, 5)) == 0,
                migrating=migrating,
            )
        )
    return found


def thresholds(lowest: int, highest: int) -> st.SearchStrategy[dict[str, float]]:
    percents = st.integers(lowest, highest).map(float)
    others = st.fixed_dictionaries({}, optional={"memory": percents, "pods": percents})
    cpu = st.fixed_dictionaries({"cpu": percents})
    return st.builds(lambda one, more: {**one, **more}, st.one_of(cpu, cpu, st.just({})), others)


@st.composite
def random_args(draw: st.DrawFn, planner: Planner = Planner.EXACT) -> LowNodeLoadArgs:
    """Args that act at once; low thresholds are below high ones."""

    def two() -> tuple[dict[str, float], dict[str, float]]:
        low, high = draw(thresholds(20, 60)), draw(thresholds(0, 70))
        return {name: min(one, high.get(name, one)) for name, one in low.items()}, high

    low, high = two()
    prod_low, prod_high = two() if draw(st.booleans()) else ({}, {})
    made = LowNodeLoadArgs(
        low_thresholds=low,
        high_thresholds=high,
        prod_low_thresholds=prod_low,
        prod_high_thresholds=prod_high,
        use_deviation_thresholds=draw(st.integers(0, 3)) == 3,
        node_fit=draw(st.booleans()),
        planner=planner,
    ).complete()
    assert made.anomaly_condition is not None
    return replace(
        made, anomaly_condition=replace(made.anomaly_condition, consecutive_abnormalities=1)
    )
