"""Whether a pod fits its quota, and whether the quotas of a tree fit each other."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from koord.api.elasticquota import ROOT_QUOTA, Amounts, ElasticQuota, quantity_text
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState
from koord_scheduler_plugins.elastic_quota.tree import ROOT, Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionOptions:
    """Options of the check that admits a pod to its quota."""

    parents: bool = False  # limits of ancestors, too
    all_resources: bool = False  # as Koordinator: also those that the pod does not ask for


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod is not admitted."""

    message: str
    quota: str  # the quota that lacks something: the pod's own one or an ancestor
    resources: tuple[str, ...]  # of which it lacks something
    error: bool = False  # the quota cannot be found; waiting does not help


def admission(
    state: QuotaState,
    name: str,
    request: Amounts,
    *,
    preemptible: bool = True,
    options: AdmissionOptions | None = None,
    freed: Amounts | None = None,
    freed_non_preemptible: Amounts | None = None,
) -> Rejection | None:
    """Return why a pod that requests so much is not admitted to a quota; None: it is.

    freed, freed_non_preemptible: what a what-if has taken away of what the quota uses, below 0
    for what it has added.

    Source: Koordinator, elasticquota Plugin.PreFilter.
    """
    options = options or AdmissionOptions()
    quota = state.tree.find(name)
    if quota is None:
        return Rejection("Could not find the specified ElasticQuota", name, (), error=True)
    asked = {key: amount for key, amount in request.items() if key in quota.max}
    looked_at = _looked_at(asked, options)
    limit, used = state.limit(name), _without(state.used(name), freed)
    exceeded = _exceeded(limit, used, asked, looked_at)
    if exceeded:
        message = (
            f"Insufficient quotas, quotaName: {name}, runtime: {list_text(limit)}, "
            f"used: {list_text(used)}, pod's request: {list_text(asked)}, "
            f"exceedDimensions: [{' '.join(exceeded)}]"
        )
        return Rejection(message, name, exceeded)
    if not preemptible:
        used = _without(state.non_preemptible_used(name), freed_non_preemptible)
        exceeded = _exceeded(quota.min, used, asked, looked_at)
        if exceeded:
            message = (
                f"Insufficient non-preemptible quotas, quotaName: {name}, "
                f"min: {list_text(quota.min)}, nonPreemptibleUsed: {list_text(used)}, "
                f"pod's request: {list_text(asked)}, exceedDimensions: [{' '.join(exceeded)}]"
            )
            return Rejection(message, name, exceeded)
    return _by_ancestors(state, name, asked, freed) if options.parents else None


def _by_ancestors(
    state: QuotaState, name: str, asked: Amounts, freed: Amounts | None
) -> Rejection | None:
    """From the parent upwards; only resources that the pod asks for."""
    path = state.tree.path(name)
    for at in range(len(path) - 2, -1, -1):
        ancestor = path[at]
        limit, used = state.limit(ancestor), _without(state.used(ancestor), freed)
        exceeded = _exceeded(limit, used, asked, asked.__contains__)
        if exceeded:
            message = (
                f"Insufficient quotas, quotaNameTopo: [{' '.join(path[at:])}], "
                f"runtime: {list_text(limit)}, used: {list_text(used)}, "
                f"pod's request: {list_text(asked)}, exceedDimensions: [{' '.join(exceeded)}]"
            )
            return Rejection(message, ancestor, exceeded)
    return None


def list_text(amounts: Amounts) -> str:
    """Return a resource list as messages have it: cpu:1,memory:2."""
    found = (f"{key}:{quantity_text(key, amount)}" for key, amount in sorted(amounts.items()))
    return ",".join(found) or "<empty>"


def _looked_at(asked: Amounts, options: AdmissionOptions) -> Callable[[str], bool]:
    if options.all_resources:
        return lambda resource: True
    return lambda resource: asked.get(resource, 0) > 0


def _exceeded(
    limit: Amounts, used: Amounts, asked: Amounts, looked_at: Callable[[str], bool]
) -> tuple[str, ...]:
    """Resources of which used and asked together exceed the limit; what it lacks is not limited."""
    return tuple(
        key
        for key in sorted({*used, *asked})
        if key in limit and looked_at(key) and used.get(key, 0) + asked.get(key, 0) > limit[key]
    )


def _without(used: Amounts, freed: Amounts | None) -> Amounts:
    if not freed:
        return used
    return {key: max(used.get(key, 0) - freed.get(key, 0), 0) for key in {*used, *freed}}


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOptions:
    """Gates that relax the checks of a tree."""

    subset_keys: bool = False  # ElasticQuotaEnableUpdateResourceKey
    parents_have_pods: bool = False  # SupportParentQuotaSubmitPod


def tree_problems(
    tree: Tree,
    used: Mapping[str, Amounts],
    with_pods: Collection[str] = (),
    options: TreeOptions | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return what is wrong with quotas of a tree by name, as texts for a condition.

    used: what pods of each quota and those below it use. with_pods: names of quotas that have
    pods of their own.

    Source: Koordinator, quota_topology_check.go, whose texts these are.
    """
    found = {}
    for quota in (*tree.quotas, *tree.fixed.values(), *tree.detached.values()):
        name = quota.name
        problems = quota_problems(
            tree, name, used.get(name, {}), with_pods=name in with_pods, options=options
        )
        if problems:
            found[name] = problems
    return found


def quota_problems(
    tree: Tree,
    name: str,
    used: Amounts,
    *,
    with_pods: bool,
    options: TreeOptions | None = None,
) -> tuple[str, ...]:
    """Return what is wrong with one quota of a tree; with_pods: it has pods of its own."""
    options, found, quota = options or TreeOptions(), [], tree.find(name)
    if name in tree.problems:
        found.append(tree.problems[name])
    if quota is None:
        return tuple(found)
    found += own_problems(quota, used)
    place = tree.places.get(name)
    if place is not None:
        parent = tree.parents[place]
        if parent != ROOT:
            found += _parent_problems(quota, tree.quotas[parent], options)
        found += _children_problems(quota, [tree.quotas[at] for at in tree.children[place]])
        if quota.is_parent and with_pods and not options.parents_have_pods:
            found.append(f"quota {name} is a parent and has bound pods")
    return tuple(found)


def own_problems(quota: ElasticQuota, used: Amounts) -> Iterator[str]:
    """Return the problems of a quota by itself."""
    name = quota.name
    yield from quota.problems
    for key, low in sorted(quota.min.items()):
        if key not in quota.max:
            yield (
                f"resourceKey {key} of quota {name} is included in min, which is not included in "
                "max"
            )
        elif low > quota.max[key]:
            yield (
                f"resourceKey {key} of quota {name} min {quantity_text(key, low)} > "
                f"max {quantity_text(key, quota.max[key])}"
            )
    for key in sorted(quota.strict):
        amount = used.get(key, 0)
        if amount and key not in quota.max:
            yield (
                f"resourceKey {key} of quota {name} is included in used, which is not included in "
                "max but should check max >= used"
            )
        elif amount > quota.max.get(key, amount):
            yield (
                f"resourceKey {key} of quota {name} max {quantity_text(key, quota.max[key])} < "
                f"used {quantity_text(key, amount)}"
            )


def _parent_problems(
    quota: ElasticQuota, parent: ElasticQuota, options: TreeOptions
) -> Iterator[str]:
    if not parent.is_parent:
        yield (
            f"{quota.name} has parentName {parent.name} but the parentQuotaInfo's IsParent is false"
        )
    if quota.tree != parent.tree:
        yield (
            f"{quota.name} tree id is different from parent {parent.name}, "
            f"[{quota.tree}] vs [{parent.tree}]"
        )
    failed = f"checkSubAndParentGroupQuotaKey failed: {quota.name}'s"
    if options.subset_keys and not quota.max.keys() <= parent.max.keys():
        yield f"{failed} max keys are not all included in {parent.name}'s"
    if not options.subset_keys and quota.max.keys() != parent.max.keys():
        yield f"{failed} max keys are not the same with {parent.name}'s"
    if not quota.min.keys() <= parent.min.keys():
        yield f"{failed} min keys are not all included in {parent.name}'s"


def _children_problems(quota: ElasticQuota, children: Iterable[ElasticQuota]) -> Iterator[str]:
    """Whether min covers the mins of children."""
    if quota.forced or quota.is_root or quota.name == ROOT_QUOTA:
        return
    sums: dict[str, int] = {}
    for child in children:
        for key, low in child.min.items():
            sums[key] = sums.get(key, 0) + low
    if any(amount > quota.min.get(key, 0) for key, amount in sums.items()):
        yield (
            "checkMinQuotaSum all children's MinQuota > current MinQuota, current: " + quota.name
        )
