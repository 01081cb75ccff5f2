"""The rules of load-aware scheduling, node by node and from nothing, as their text says them."""

import json
from fractions import Fraction
from math import floor

from koord.cluster.facts import ClusterNode, ClusterPod
from koord_scheduler_plugins.load_aware.estimates import Estimator
from tests.support.scheduler.load_aware import THRESHOLDS, LoadKit

Vector = dict[str, int]
RESERVE = {"scheduling.koordinator.sh/reserve-pod": "true"}


def thresholds_of(node: ClusterNode) -> dict[str, dict[str, int]]:
    """The parts of the annotation of a node, which is well-formed here."""
    found = dict(node.annotations).get(THRESHOLDS, "{}")
    parts: dict[str, dict[str, int]] = json.loads(found)
    return parts


def amounts(usage: object) -> Vector:
    if usage is None:
        return {"cpu": 0, "memory": 0}
    return {"cpu": round(usage.cores * 1000), "memory": round(usage.memory_bytes)}  # type: ignore[attr-defined]


class PlainLoad:
    """One node as it is now. gone: usage of pods that have left since the report."""

    def __init__(self, kit: LoadKit, node: str, gone: dict[str, Vector]) -> None:
        self.kit, self.args = kit, kit.args
        view = kit.view()
        row = view.row(node)
        assert row is not None
        self.capacity = {"cpu": 0, "memory": 0, **dict(view.node(row).allocatable)}
        self.capacity.update(view.node(row).raw_allocatable or ())
        self.report = kit.state.reports.get(node)
        self.pods = [
            one for one in view.pods(row) if not one.finished and dict(one.annotations) != RESERVE
        ]
        self.thresholds = thresholds_of(view.node(row))
        self.gone = gone
        self.estimator = Estimator(kit.args)

    def reason(self, pod: ClusterPod) -> str:
        args = self.args
        if self.report is None:
            return ""
        if self.expired:
            keeps_off = (
                args.filter_expired_node_metrics
                and not args.enable_schedule_when_node_metrics_expired
            )
            return "node(s) nodeMetric expired" if keeps_off else ""
        if self.report.usage is None:
            return ""
        default = self.thresholds.get("usageThresholds") or args.usage_thresholds
        of_prod = self.thresholds.get("prodUsageThresholds") or args.prod_usage_thresholds
        prod = self.is_prod(pod) and any(of_prod.get(name) for name in args.resources)
        aggregated = args.aggregated
        by_type = aggregated is not None and bool(aggregated.usage_thresholds)
        by_type = by_type and bool(aggregated and aggregated.usage_aggregation_type)
        if prod:
            thresholds, load, word = of_prod, self.prod_load(), ""
        elif by_type and aggregated is not None:
            thresholds, word = aggregated.usage_thresholds, "aggregated "
            load = self.load(
                aggregated.usage_aggregation_type, aggregated.usage_aggregated_duration
            )
        else:
            thresholds, load, word = default, self.load("", 0.0), ""
        for name, adds in self.estimate(pod).items():
            threshold, capacity = thresholds.get(name, 0), self.capacity[name]
            if threshold and capacity:
                percent = Fraction(100 * (load[name] + adds), capacity)
                if floor(percent + Fraction(1, 2)) > threshold:
                    return f"node(s) {name} {word}usage exceed threshold"
        return ""

    def score(self, pod: ClusterPod) -> int:
        args = self.args
        if self.report is None or self.expired or self.report.usage is None:
            return 0
        aggregated = args.aggregated
        if args.score_according_prod_usage and self.is_prod(pod):
            load = self.prod_load()
        elif aggregated is not None and aggregated.score_aggregation_type:
            load = self.load(
                aggregated.score_aggregation_type, aggregated.score_aggregated_duration
            )
        else:
            load = self.load("", 0.0)
        shares, total = [], 0
        for name, adds in self.estimate(pod).items():
            capacity, used = self.capacity[name], load[name] + adds
            if not capacity:
                continue
            share = 0 if used > capacity else (capacity - used) * 100 // capacity
            shares.append(share)
            total += share * args.resource_weights.get(name, 0)
        total += args.dominant_resource_weight * min(shares, default=0)
        return total // (sum(args.resource_weights.values()) + args.dominant_resource_weight)

    @property
    def expired(self) -> bool:
        at = None if self.report is None else self.report.update_time
        return at is None or self.kit.now - at >= self.args.node_metric_expiration_seconds

    def is_prod(self, pod: ClusterPod) -> bool:
        return self.estimator.incoming(pod)[1]

    def estimate(self, pod: ClusterPod) -> Vector:
        found = self.estimator.incoming(pod)[0]
        return dict(zip(self.args.resources, found, strict=True))

    def load(self, kind: str, duration: float) -> Vector:
        assert self.report is not None
        windows = [
            (one.duration, at, getattr(one, kind))
            for at, one in enumerate(self.report.aggregated)
            if kind and getattr(one, kind) is not None and duration in (0, one.duration)
        ]
        usage = amounts(max(windows, key=lambda one: one[:2])[2] if windows else self.report.usage)
        for gone in self.gone.values():
            usage = {name: max(one - gone[name], 0) for name, one in usage.items()}
        load = {name: one + self.delta()[name] for name, one in usage.items()}
        if kind and duration and not windows:
            whole = [self.estimate(pod) for pod in self.pods]
            load = {name: max(one, sum(each[name] for each in whole)) for name, one in load.items()}
        return load

    def prod_load(self) -> Vector:
        assert self.report is not None
        load = amounts(self.report.system_usage if self.args.prod_usage_include_sys else None)
        for pod in self.pods:
            if not self.is_prod(pod):
                continue
            usage, as_prod = self.usage(pod)
            estimate = self.estimate(pod)
            for name in load:
                if usage is not None and not as_prod:
                    load[name] += estimate[name]
                    continue
                used = 0 if usage is None else usage[name]
                more = max(estimate[name] - used, 0) if self.forced(pod, usage) else 0
                load[name] += used + more
        return load

    def delta(self) -> Vector:
        found = {"cpu": 0, "memory": 0}
        for pod in self.pods:
            usage, _ = self.usage(pod)
            if self.forced(pod, usage):
                for name, amount in self.estimate(pod).items():
                    found[name] += max(amount - (0 if usage is None else usage[name]), 0)
        return found

    def forced(self, pod: ClusterPod, usage: Vector | None) -> bool:
        assert self.report is not None
        assert self.report.update_time is not None
        if usage is None:
            return True
        at, interval = self.report.update_time, self.report.interval or 60.0
        times = {
            one.type: at
            for one, at in zip(pod.conditions, pod.condition_times, strict=True)
            if one.status == "True"
        }
        since = times.get("PodScheduled")
        if since is None or since > at - interval:
            return True
        args = self.args
        if args.estimated_seconds_after_initialized and times.get("Initialized") is not None:
            return times["Initialized"] + args.estimated_seconds_after_initialized > at  # type: ignore[operator]
        return since + (args.estimated_seconds_after_pod_scheduled or -1e9) > at

    def usage(self, pod: ClusterPod) -> tuple[Vector | None, bool]:
        assert self.report is not None
        assert self.report.update_time is not None
        if pod.key in self.gone or (pod.created or 0) > self.report.update_time:
            return None, False
        for one in self.report.pods:
            if f"{one.namespace}/{one.name}" == pod.key:
                return amounts(one.usage), one.priority == "koord-prod"
        return None, False
