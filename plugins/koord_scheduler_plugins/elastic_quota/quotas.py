"""All quotas at one moment: their trees, and what the account says that pods hold of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from math import inf

from msgspec.structs import replace as replace_fields

from koord.api.elasticquota import (
    DEFAULT_QUOTA,
    DEPRECATED,
    MAX_AMOUNT,
    NAME,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    Amounts,
    ElasticQuota,
    is_preemptible,
)
from koord_scheduler.plugin import ClusterPod, LabelSet, PodSpec
from koord_scheduler.plugin.koordinator import AccountKind, FrozenAccount, Holding
from koord_scheduler_plugins.elastic_quota.checks import TreeOptions, quota_problems
from koord_scheduler_plugins.elastic_quota.runtime import (
    QuotaState,
    RuntimeOptions,
    Sums,
    compute,
    update,
)
from koord_scheduler_plugins.elastic_quota.tree import (
    FIXED,
    QuotaIndex,
    build_trees,
    good_parents,
    index_quotas,
    tree_totals,
    unique,
)

UNLIMITED = (2**63 - 1) // 5
"""An amount that says that there is no limit, as Koordinator's default for the fixed quotas."""
_FIXED, _PREEMPTIBLE = "fixed", "preemptible"


class LeavingPods(Enum):
    """How long pods that are being deleted count in their quotas."""

    UNTIL_GONE = "until they are gone"
    UNTIL_OVERDUE = "until they should have gone"  # ElasticQuotaIgnoreTerminatingPod
    NEVER = "not at all"  # ElasticQuotaImmediateIgnoreTerminatingPod


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that have the same quota, whichever it is. They are one pool of the account."""

    namespace: str
    quota: str  # that their label names; "": none
    preemptible: bool
    overdue_at: float = inf  # Unix seconds; from when they do not count any more

    @property
    def labels(self) -> Mapping[str, str]:
        return {NAME: self.quota} if self.quota else {}


def pool_name(pod: ClusterPod) -> str:
    """Return the pool of a pod. Neither a namespace nor the value of a label has a slash."""
    return _pool(pod.label_set)


def _pool(pods: LabelSet) -> str:
    kind = _PREEMPTIBLE if is_preemptible(pods.labels) else _FIXED
    return f"{pods.namespace}/{pods.labels.get(NAME, '')}/{kind}"


def pod_group(pool: str) -> PodGroup:
    """Return the pods of a pool."""
    namespace, quota, kind, *overdue = pool.split("/")
    return PodGroup(namespace, quota, kind == _PREEMPTIBLE, *map(float, overdue))


def pod_request(pod: ClusterPod, *, overhead: bool = True) -> Amounts:
    """Return what a pod requests: cpu in millicores, all else in units.

    Deprecated names of batch resources stand for those that quotas have. overhead: what its
    sandbox takes counts, too.
    """
    return dict(_amounts(pod.spec, overhead=overhead))


def _amounts(spec: PodSpec, *, overhead: bool) -> Sequence[tuple[str, int]]:
    requests = spec.requests
    if not overhead and spec.overhead:
        more = dict(spec.overhead)
        left = ((name, amount - more.get(name, 0)) for name, amount in requests)
        requests = tuple((name, amount) for name, amount in left if amount > 0)
    if not any(name in DEPRECATED or amount > MAX_AMOUNT for name, amount in requests):
        return requests
    found: dict[str, int] = {}
    for said, amount in requests:
        name = DEPRECATED.get(said, said)
        found[name] = min(found.get(name, 0) + amount, MAX_AMOUNT)
    return tuple(found.items())


def _account(leaving: LeavingPods, *, overhead: bool) -> AccountKind:
    @lru_cache(maxsize=1024)  # equal pods share both; all pods of a cluster come by here
    def of_equal_pods(labels: LabelSet, spec: PodSpec) -> Sequence[Holding]:
        amounts = tuple(_amounts(spec, overhead=overhead))
        return (Holding(_pool(labels), amounts),)

    def holdings(pod: ClusterPod) -> Sequence[Holding]:
        if pod.deleting and leaving is LeavingPods.NEVER:
            return ()
        found = of_equal_pods(pod.label_set, pod.spec)
        if pod.overdue_at is None or leaving is LeavingPods.UNTIL_GONE:
            return found
        return [replace_fields(one, pool=f"{one.pool}/{pod.overdue_at}") for one in found]

    return AccountKind("quota", holdings, of_spec=True)


_ACCOUNTS = {
    (leaving, overhead): _account(leaving, overhead=overhead)
    for leaving in LeavingPods
    for overhead in (True, False)
}
"""Pods by namespace, the quota that their label names, and whether they may be preempted.

By how long pods that are being deleted count, and whether the overhead of pods does. Those that
count for a while have pools of their own by the end of it: what holds when, the pods alone say.
"""
QUOTA_PODS = _ACCOUNTS[LeavingPods.UNTIL_GONE, True]


NO_ACCOUNT = FrozenAccount({})
_NOTHING: Amounts = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaOptions:
    """Options that do not change while the scheduler runs."""

    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    default_max: Amounts = field(default_factory=dict)  # of the default quota without an object
    system_max: Amounts = field(default_factory=dict)
    multi_tree: bool = False  # MultiQuotaTree
    default_quota: bool = True  # False: DisableDefaultQuota
    leaving: LeavingPods = LeavingPods.UNTIL_GONE
    overhead: bool = True  # False: ElasticQuotaIgnorePodOverhead
    tree: TreeOptions = field(default_factory=TreeOptions)  # of problems

    @property
    def pods(self) -> AccountKind:
        """The account of the pods that count."""
        return _ACCOUNTS[self.leaving, self.overhead]

    def request(self, pod: ClusterPod) -> Amounts:
        """Return what a pod takes of its quota; see pod_request."""
        return pod_request(pod, overhead=self.overhead)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Immutable. Each change returns another one, and costs what depends on the change."""

    options: QuotaOptions
    objects: Mapping[str, ElasticQuota] = field(default_factory=dict)  # by name
    index: QuotaIndex = field(default_factory=QuotaIndex)
    states: Mapping[str, QuotaState] = field(default_factory=dict)  # by tree id
    nodes: Amounts = field(default_factory=dict)  # what all nodes have together
    account: FrozenAccount = NO_ACCOUNT
    now: float = -inf  # Unix seconds; when pods were last found to be overdue
    leaving: Mapping[str, float] = field(default_factory=dict)  # pools of pods that will be -> when
    next_overdue: float = inf  # Unix seconds; the first of these: asked for in each cycle
    problems: Mapping[str, str] = field(default_factory=dict)  # of ignored objects, by their key
    admits_all: bool = False
    """There are no quotas but the fixed ones, which limit nothing: no pod lacks room."""

    def quota_of(self, pod: ClusterPod) -> tuple[str, str] | None:
        """Return name and tree id of the quota of a pod; None: it has none."""
        return self.index.quota_of(pod.labels, pod.namespace)

    def counts(self, pod: ClusterPod) -> bool:
        """Whether a pod that has not gone counts in its quota, although it may be leaving."""
        if not pod.deleting or self.options.leaving is LeavingPods.UNTIL_GONE:
            return True
        if self.options.leaving is LeavingPods.NEVER:
            return False
        return pod.overdue_at is None or pod.overdue_at > self.now

    def state_of(self, name: str) -> QuotaState | None:
        """Return the state of the tree of a quota; None: there is no such quota."""
        tree = self.index.trees.get(name)
        return None if tree is None else self.states.get(tree)

    def problems_of(self, quota: ElasticQuota) -> tuple[str, ...]:
        """Return what is wrong with an object, by itself and among the others."""
        name, state = quota.name, self.state_of(quota.name)
        if quota.key in self.problems:
            return (*quota.problems, self.problems[quota.key])
        bound = self.index.problems.get(name)
        found = () if bound is None else (bound,)
        if state is None:  # the root
            return (*quota.problems, *found)
        has_pods = name in state.sums.requested and bool(state.sums.requested[name])
        own = quota_problems(
            state.tree, name, state.used(name), with_pods=has_pods, options=self.options.tree
        )
        return (*own, *found)

    def with_account(self, account: FrozenAccount) -> "Quotas":
        """With what pods hold by another account: a later one, or that of a what-if."""
        if account is self.account:
            return self
        changes = _Changes(self.index, self.options.pods, self.now)
        moved: dict[str, float] = {}
        for pool in account.other_pools(self.options.pods, self.account):
            group = changes.move(pool, self.account, account)
            if self.now < group.overdue_at < inf:
                moved[pool] = group.overdue_at
        found = self._changed(changes, account)
        if not moved:
            return found
        leaving = {**self.leaving, **moved}
        for pool in moved:
            if not account.pool(self.options.pods, pool).pods:
                del leaving[pool]
        return found._with_leaving(leaving)

    def _with_leaving(self, leaving: Mapping[str, float]) -> "Quotas":
        return replace(self, leaving=leaving, next_overdue=min(leaving.values(), default=inf))

    def with_time(self, now: float) -> "Quotas":
        """Without the pods that are overdue by now, in Unix seconds."""
        if now < self.next_overdue:
            return self
        changes = _Changes(self.index, self.options.pods, self.now)
        for pool, overdue_at in self.leaving.items():
            if overdue_at <= now:
                changes.move(pool, self.account, NO_ACCOUNT)
        leaving = {pool: at for pool, at in self.leaving.items() if at > now}
        return replace(self._changed(changes, self.account), now=now)._with_leaving(leaving)

    def with_nodes(self, nodes: Amounts) -> "Quotas":
        """With other nodes."""
        if nodes == self.nodes:
            return self
        totals = tree_totals(nodes, {key: state.tree for key, state in self.states.items()})
        states = {
            key: update(state, state.tree, state.sums, totals[key], ())
            for key, state in self.states.items()
        }
        return replace(self, nodes=nodes, states=states)

    def with_objects(self, found: Iterable[ElasticQuota]) -> "Quotas":
        """With these ElasticQuota objects and no others."""
        present = list(found)
        names = {quota.name for quota in present}
        missing = [quota for quota in self._fixed() if quota.name not in names]
        objects, problems = unique([*present, *missing])
        before = {key: state.tree for key, state in self.states.items()}
        trees = build_trees(
            objects, multi_tree=self.options.multi_tree, parents=good_parents(before.values())
        )
        index = index_quotas(
            objects.values(),
            multi_tree=self.options.multi_tree,
            default=self.options.default_quota,
        )
        sums = {key: state.sums for key, state in self.states.items()}
        if self.index != index or sums.keys() != trees.keys():
            changes = _Changes(index, self.options.pods, self.now)
            for pool in self.account.other_pools(self.options.pods, None):
                changes.move(pool, NO_ACCOUNT, self.account)
            sums = {key: changes.sums(key, Sums()) for key in trees}
        totals, options = tree_totals(self.nodes, trees), self.options.runtime
        states = {
            key: compute(tree, sums[key], totals[key], options) for key, tree in trees.items()
        }
        admits_all = all(_limits_nothing(one) for one in objects.values())
        return replace(
            self,
            objects=objects,
            index=index,
            states=states,
            problems=problems,
            admits_all=admits_all,
        )

    def _fixed(self) -> Iterable[ElasticQuota]:
        """The quotas that are always there, also without an object."""
        yield ElasticQuota(name=DEFAULT_QUOTA, max=self.options.default_max)
        yield ElasticQuota(name=SYSTEM_QUOTA, max=self.options.system_max)

    def _changed(self, changes: "_Changes", account: FrozenAccount) -> "Quotas":
        states = dict(self.states)
        for key in changes.trees:
            state = states.get(key)
            if state is not None:
                sums, names = changes.sums(key, state.sums), changes.names(key)
                states[key] = update(state, state.tree, sums, state.total, names)
        return replace(self, account=account, states=states)


def _limits_nothing(quota: ElasticQuota) -> bool:
    """Whether it is a fixed quota that pods never fill, as it is without an object."""
    return quota.name == ROOT_QUOTA or (
        quota.name in FIXED
        and not quota.min
        and all(amount >= UNLIMITED for amount in quota.max.values())
    )


_Four = tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]


class _Changes:
    """Differences between two accounts, by tree id and quota; the fields of Sums of each."""

    def __init__(self, index: QuotaIndex, pods: AccountKind, now: float) -> None:
        self._index = index
        self._pods = pods
        self._now = now  # pods that were overdue by then do not count
        self.trees: dict[str, dict[str, _Four]] = {}

    def move(self, pool: str, before: FrozenAccount, after: FrozenAccount) -> PodGroup:
        """Add the difference of a pool, and return whose it is."""
        group = pod_group(pool)
        found = self._index.quota_of(group.labels, group.namespace)
        if found is None or group.overdue_at <= self._now:
            return group
        name, tree = found
        sums = self.trees.setdefault(tree, {}).setdefault(name, ({}, {}, {}, {}))
        old, new = before.pool(self._pods, pool), after.pool(self._pods, pool)
        for at, (one, other) in enumerate(
            ((old.requested, new.requested), (old.allocated, new.allocated))
        ):
            _add(sums[at], one, other)
            if not group.preemptible:
                _add(sums[at + 2], one, other)
        return group

    def names(self, tree: str) -> Collection[str]:
        """Names of the quotas of a tree that have changed."""
        return self.trees.get(tree, {}).keys()

    def sums(self, tree: str, before: Sums) -> Sums:
        """Return the sums of a tree after the changes."""
        requested, used = dict(before.requested), dict(before.used)
        fixed_requested = dict(before.non_preemptible_requested)
        fixed_used = dict(before.non_preemptible_used)
        each = requested, used, fixed_requested, fixed_used
        for name, differences in self.trees.get(tree, {}).items():
            for amounts, difference in zip(each, differences, strict=True):
                if difference:
                    total = dict(amounts.get(name, _NOTHING))
                    _add(total, _NOTHING, difference)
                    amounts[name] = total
        return Sums(
            requested=requested,
            used=used,
            non_preemptible_requested=fixed_requested,
            non_preemptible_used=fixed_used,
        )


def _add(sums: dict[str, int], before: Amounts, after: Amounts) -> None:
    """Add the difference of two lists; what becomes 0 is absent."""
    for name in {**before, **after}:
        total = sums.get(name, 0) + after.get(name, 0) - before.get(name, 0)
        if total:
            sums[name] = total
        else:
            sums.pop(name, None)


def start(options: QuotaOptions) -> Quotas:
    """Return the quotas of a cluster of which nothing is known yet."""
    return Quotas(options).with_objects(())
