"""CPU usage of all but best-effort pods, and the allowance that follows from it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.node import Node, reserved_amounts
from koord.api.nodeslo import CgroupBase, HostApplication, NodeSLO
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.quantity import Quantity
from koordlet.plugin import MetricCache, PodMeta, kinds
from koordlet.plugin.kernel import WatchedValue

FAST_SAMPLES = 3


class UsageSplit(NamedTuple):
    """Parts of a node's usage, in cores or bytes."""

    pods: float  # the selected pods, and those that are not known
    apps: float  # the selected host applications
    system: float  # the rest: neither a pod's nor a host application's


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """The node's capacity, and the share of it that all pods and the system may use together."""

    capacity: int  # milli-cores
    threshold: int  # percent of the capacity
    floor: int | None = None  # percent that best-effort pods always keep; None: no such floor

    def left(self, used: UsageSplit) -> int:
        """Return the milli-cores left by all others; negative when they exceed the threshold.

        Each part is cut to whole milli-cores, as Koordinator does.
        """
        left = self.capacity * self.threshold // 100 - sum(int(part * 1000) for part in used)
        if self.floor is None:
            return left
        return max(left, self.capacity * self.floor // 100)


class FastUsage(NamedTuple):
    """Cores used between two looks. outside None: the kernel has no exact counter for it."""

    pods: float  # by all pods that are not in the best-effort group, and host applications there
    outside: float | None  # by all that is not in kubepods


@dataclass(frozen=True, slots=True)
class RoundBaseline:
    """Values of the latest round that a fast look does not measure. In cores."""

    budget: NodeBudget
    reserved: float  # for the system
    system: float  # its usage, where it has no exact counter
    apps_outside: float  # host applications outside of kubepods
    be_outside: float  # best-effort pods that are not in the best-effort group

    def split(self, use: FastUsage) -> UsageSplit:
        """Return the split of a fast look, in the terms of a round."""
        system = self.system
        if use.outside is not None:
            system = max(use.outside - self.apps_outside, self.reserved)
        return UsageSplit(max(use.pods - self.be_outside, 0.0), self.apps_outside, system)


@dataclass(frozen=True, slots=True)
class RoundUsage:
    """One round's measurement. In cores."""

    baseline: RoundBaseline
    used: UsageSplit  # by all but best-effort pods
    cores: int  # of the node


def measure(
    node: Node | None, slo: NodeSLO, pods: Sequence[PodMeta], cache: MetricCache
) -> RoundUsage | None:
    """Return the measurement of now; None: capacity, pods or their usage are not known."""
    capacity = Quantity.parse(node.capacity.get("cpu", "0")) if node else Quantity(0)
    node_used = cache.last(kinds.NODE_CPU_USAGE)
    if node is None or capacity.nano <= 0 or node_used is None or not pods:
        return None
    pods_used = _by_name(cache, kinds.POD_CPU_USAGE)
    apps_used = _by_name(cache, kinds.HOST_APP_CPU_USAGE)
    reserved = node_reserved(node, "cpu").milli / 1000
    used = split_usage(
        node_used,
        reserved,
        pods=(meta.pod for meta in pods),
        pods_used=pods_used,
        counts_pod=lambda pod: not is_best_effort(pod),
        apps=slo.host_applications,
        apps_used=apps_used,
        counts_app=lambda app: not is_best_effort_app(app),
    )
    threshold = slo.threshold
    baseline = RoundBaseline(
        budget=NodeBudget(
            capacity.milli,
            threshold.cpu_suppress_threshold_percent,
            threshold.cpu_suppress_min_percent,
        ),
        reserved=reserved,
        system=used.system,
        apps_outside=sum(
            apps_used.get(app.name, 0.0)
            for app in slo.host_applications
            if app.base in (None, CgroupBase.CGROUP_ROOT)
        ),
        be_outside=sum(
            pods_used.get(meta.uid, 0.0)
            for meta in pods
            if meta.kube_qos is not KubeQoS.BEST_EFFORT and is_best_effort(meta.pod)
        ),
    )
    return RoundUsage(baseline, used, capacity.integer)


def _by_name(cache: MetricCache, kind: kinds.AnyKind) -> dict[str, float]:
    return {name: value for (name,), value in cache.last_values(kind).items()}


class FastSamples:
    """The usage of the last few looks. One thread adds; any may read."""

    def __init__(self) -> None:
        self._before: Sequence[WatchedValue | None] = ()
        self._uses: tuple[FastUsage, ...] = ()

    def add(self, counters: Sequence[WatchedValue | None]) -> None:
        """Add the CPU time, in ns, of the best-effort group, of kubepods and perhaps of the node.

        Where one of the first two is missing, or runs backwards, all looks are dropped. The same
        readings again are ignored: a replay repeats those that were recorded.
        """
        if list(counters) == list(self._before):
            return
        use = _use(self._before, counters)
        self._uses = () if use is None else (*self._uses, use)[-FAST_SAMPLES:]
        self._before = counters

    def clear(self) -> None:
        """Forget everything."""
        self._before, self._uses = (), ()

    @property
    def recent(self) -> tuple[FastUsage, ...]:
        """The last FAST_SAMPLES usages, or none as long as there are fewer."""
        uses = self._uses
        return uses if len(uses) == FAST_SAMPLES else ()


def _use(
    before: Sequence[WatchedValue | None], now: Sequence[WatchedValue | None]
) -> FastUsage | None:
    if len(before) != len(now):
        return None
    best_effort, kubepods, *node = map(_cores, before, now)
    if best_effort is None or kubepods is None:
        return None
    outside = max(node[0] - kubepods, 0.0) if node and node[0] is not None else None
    return FastUsage(max(kubepods - best_effort, 0.0), outside)


def _cores(before: WatchedValue | None, now: WatchedValue | None) -> float | None:
    if before is None or now is None or now.at <= before.at or now.value < before.value:
        return None
    cores: float = (now.value - before.value) / (now.at - before.at) / 1e9
    return cores


CALM_ROUNDS = 3  # a spike shorter than a round shows in two of them at most
STEP = 0.1  # share of the node's CPU by which best-effort pods may grow in one round


@dataclass(frozen=True, slots=True)
class Allowance:
    """Milli-cores for best-effort pods.

    With more than most they must be reduced at once, with less than least they may grow, and in
    between they stay as they are.
    """

    least: int
    most: int


class Evidence(NamedTuple):
    """The allowance, and the measurements that it follows from, for people."""

    allowance: Allowance
    budget: NodeBudget
    used: UsageSplit  # cores, of all but best-effort pods
    span: str  # when they were used

    def inputs(self) -> Mapping[str, float | str]:
        """The inputs of a claim. In cores, but for the percentages."""
        inputs: dict[str, float | str] = {
            "capacity_cores": self.budget.capacity / 1000,
            "threshold_percent": self.budget.threshold,
            "pods_cores": round(self.used.pods, 3),
            "host_applications_cores": round(self.used.apps, 3),
            "system_cores": round(self.used.system, 3),
            "left_cores": self.budget.left(self.used) / 1000,
            "measured": self.span,
        }
        if self.budget.floor is not None:
            inputs["min_percent"] = self.budget.floor
        return inputs


class EvidenceBuilder:
    """Turns measurements into evidence; keeps the last few rounds."""

    def __init__(self) -> None:
        self.fast_samples = FastSamples()
        self._rounds: deque[UsageSplit] = deque(maxlen=CALM_ROUNDS)

    def clear(self) -> None:
        """Forget everything."""
        self.fast_samples.clear()
        self._rounds.clear()

    def after_round(self, measured: RoundUsage) -> Evidence:
        """Return the evidence of a round.

        Without fast samples the round alone decides, as in Koordinator. With fast samples, the
        least usage of the last rounds decides how far to shrink, because the samples have seen
        whatever is urgent. The highest sample decides how far to grow, because the mean of a round
        covers earlier time.
        """
        baseline, used = measured.baseline, measured.used
        self._rounds.append(used)
        recent = self.fast_samples.recent
        left = baseline.budget.left(used)
        if not recent:
            return Evidence(Allowance(left, left), baseline.budget, used, "in the last second")
        calm = UsageSplit(
            min(past.pods for past in self._rounds),
            min(past.apps for past in self._rounds),
            used.system
            if recent[-1].outside is None
            else min(past.system for past in self._rounds),
        )
        least = min(left, *(baseline.budget.left(baseline.split(use)) for use in recent))
        allowance = Allowance(least, baseline.budget.left(calm))
        return Evidence(allowance, baseline.budget, used, "in the last second")

    def after_sample(self, baseline: RoundBaseline) -> Evidence | None:
        """Return the evidence of fast samples, which can only shrink the allowance.

        None: too few samples yet.
        """
        recent = self.fast_samples.recent
        if not recent:
            return None
        used = max((baseline.split(use) for use in recent), key=baseline.budget.left)
        most = baseline.budget.left(used)
        return Evidence(
            Allowance(min(most, 0), most), baseline.budget, used, "in the last fast looks"
        )


def split_usage(
    node_used: float,
    reserved: float,
    *,
    pods: Iterable[Pod],
    pods_used: Mapping[str, float],
    counts_pod: Callable[[Pod], bool],
    apps: Iterable[HostApplication] = (),
    apps_used: Mapping[str, float] | None = None,
    counts_app: Callable[[HostApplication], bool] = lambda app: True,
) -> UsageSplit:
    """Return the parts; the system's is never below what is reserved for it.

    pods_used is by UID, apps_used by name. Usage of a pod that is not in the list counts.
    """
    apps_used = apps_used or {}
    left_out = {pod.uid for pod in pods if not counts_pod(pod)}
    counted = sum(used for uid, used in pods_used.items() if uid not in left_out)
    measured = [app for app in apps if app.name in apps_used]
    all_apps = sum(apps_used[app.name] for app in measured)
    counted_apps = sum(apps_used[app.name] for app in measured if counts_app(app))
    system = max(node_used - sum(pods_used.values()) - all_apps, 0.0, reserved)
    return UsageSplit(counted, counted_apps, system)


def is_best_effort(pod: Pod) -> bool:
    """Whether a pod is best-effort by Koordinator's label or by Kubernetes' class."""
    return pod.raw_qos_class is QoSClass.BE or pod.qos is KubeQoS.BEST_EFFORT


def is_best_effort_app(app: HostApplication) -> bool:
    """Whether a host application runs among the best-effort pods."""
    return app.qos == QoSClass.BE and app.base is CgroupBase.KUBEPODS_BEST_EFFORT


def node_reserved(node: Node, resource: str) -> Quantity:
    """Return the amount of a resource that is reserved for processes outside of pods.

    The larger of capacity minus allocatable and the reservation in the node's annotation.
    """
    capacity, allocatable = node.capacity.get(resource), node.allocatable.get(resource)
    kept = 0
    if capacity is not None and allocatable is not None:
        kept = Quantity.parse(capacity).nano - Quantity.parse(allocatable).nano
    reserved = reserved_amounts(node.annotations).get(resource, Quantity(0))
    return Quantity(max(kept, reserved.nano, 0))
