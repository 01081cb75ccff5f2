"""How long nodes were hot: above one of the high thresholds of LowNodeLoad."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord.api.labelselector import LabelSelector
from koord.cluster.decoding import UsageReport
from koord.cluster.facts import ClusterNode
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.config.pluginargs.lownodeload import LowNodeLoadArgs

LONGEST_REPORT = 180.0  # seconds for which a report counts; as LowNodeLoad has it


@dataclass(frozen=True, slots=True)
class HotRule:
    """Thresholds of some nodes, in percent of allocatable by name of the resource."""

    thresholds: Mapping[str, float]
    node_selector: LabelSelector | None = None  # None: all nodes

    def is_for(self, node: ClusterNode) -> bool:
        """Whether the node is one of those."""
        return self.node_selector is None or self.node_selector.matches(node.labels)


def hot_rules(configuration: Configuration) -> tuple[HotRule, ...]:
    """The high thresholds of all pools; those that are distances from a mean are left out."""
    return tuple(
        HotRule(pool.high_thresholds, pool.node_selector)
        for profile in configuration.profiles
        for args in profile.args.values()
        if isinstance(args, LowNodeLoadArgs)
        for pool in args.pools()
        if pool.high_thresholds and not pool.use_deviation_thresholds
    )


class HotTime:
    """Adds up the time in which nodes were hot. Times are Unix seconds."""

    def __init__(self, rules: Sequence[HotRule]) -> None:
        """The first rule that is for a node counts."""
        self.seconds = 0.0
        self._rules = rules
        self._hot_since: dict[str, float] = {}  # nodes that are hot, by the last report

    def note(self, node: ClusterNode, report: UsageReport, now: float) -> None:
        """Take over a report that came now."""
        since = self._hot_since.pop(node.name, None)
        if since is not None:
            self.seconds += min(now - since, LONGEST_REPORT)
        if self._is_hot(node, report):
            self._hot_since[node.name] = now

    def end(self, now: float) -> None:
        """Count what is hot until now."""
        self.seconds += sum(min(now - at, LONGEST_REPORT) for at in self._hot_since.values())
        self._hot_since.clear()

    def _is_hot(self, node: ClusterNode, report: UsageReport) -> bool:
        rule = next((one for one in self._rules if one.is_for(node)), None)
        if rule is None or report.usage is None:
            return False
        used = {"cpu": report.usage.cores * 1000, "memory": report.usage.memory_bytes}
        return any(
            used[name] * 100 > rule.thresholds.get(name, float("inf")) * room
            for name, room in node.allocatable
            if name in used
        )
