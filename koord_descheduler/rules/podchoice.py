"""Which pods the arguments of a plugin choose: by namespace and by labels."""

from collections.abc import Sequence

from koord.cluster.facts import ClusterPod
from koord_descheduler.config.pluginargs.parts import Namespaces, PodSelector
from koord_descheduler.rules.evictorfilter import Constraint


def left_out(namespaces: Namespaces | None, selectors: Sequence[PodSelector]) -> Constraint:
    """Forbid pods of other namespaces, and pods that none of the selectors matches.

    Without a selector all labels will do; an entry without one is ignored.
    """
    include = frozenset(namespaces.include if namespaces else ())
    exclude = frozenset(namespaces.exclude if namespaces else ())
    wanted = [one.selector for one in selectors if one.selector is not None]

    def constraint(pod: ClusterPod) -> str:
        if pod.namespace in exclude or (include and pod.namespace not in include):
            return f"its namespace {pod.namespace} is not among evictableNamespaces"
        if wanted and not any(selector.matches(pod.labels) for selector in wanted):
            return "no podSelector matches its labels"
        return ""

    return constraint
