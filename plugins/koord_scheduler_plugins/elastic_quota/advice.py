"""Why a pod waits for its quota: which quota lacks what, and the smallest change that would help.

A change is tried on the quotas as they are before it is advised.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from koord.api.elasticquota import ROOT_QUOTA, Amounts, ElasticQuota, quantity_text
from koord_scheduler.plugin import View
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions, admission, list_text
from koord_scheduler_plugins.elastic_quota.quotas import Quotas
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState
from koord_scheduler_plugins.elastic_quota.tree import FIXED, tree_root

MAX_LEVELS = 5  # levels with insufficient quotas that are named
MAX_ENLARGEMENTS = 5  # totals that are tried, each twice as large


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Pods that wait together for room in a quota: one pod, or its whole group in this quota."""

    quota: str
    need: Amounts
    request: Amounts  # of the pod alone
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Another value of a quota."""

    quota: str
    field: str  # "max", "min", "parent" or "total"
    resource: str  # "": of a parent
    before: int | str
    after: int | str

    def __str__(self) -> str:
        if self.field == "parent":
            return f"parent of quota {self.quota}: {self.after}"
        name = "total-resource" if self.field == "total" else f"spec.{self.field}"
        before, after = (
            quantity_text(self.resource, value) if isinstance(value, int) else value
            for value in (self.before, self.after)
        )
        return f"{name}.{self.resource} of quota {self.quota}: {after} instead of {before}"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaAdvice:
    """Changes with which the quota has room. With more nodes: these have at least so much."""

    objects: Mapping[str, ElasticQuota] = field(default_factory=dict)  # changed ones by name
    changes: tuple[QuotaChange, ...] = ()
    nodes: Amounts = field(default_factory=dict)


def insufficient_quotas(
    quotas: Quotas, waiting: Waiting, options: AdmissionOptions
) -> Iterator[str]:
    """Yield which quota lacks what, on which level: its own one first, then the ones above it."""
    state = quotas.state_of(waiting.quota)
    if state is None:
        return
    name = waiting.quota
    if name in state.tree.detached:
        why = state.tree.problems.get(name, "it is not connected to the root")
        yield f"quota {name} may use nothing: {why}"
        return
    path = state.tree.path(name)
    for at, one in reversed(list(enumerate(path))):
        quota, own = state.tree.find(one), one == name
        if quota is None or not (own or options.parents):
            continue
        limit, used = state.limit(one), state.used(one)
        place = f"quota {one} (level {at + 1} of {len(path)})"
        for key, asked in sorted(waiting.need.items()):
            lacks = used.get(key, 0) + asked - limit.get(key, used.get(key, 0) + asked)
            if key in quota.max and asked and lacks > 0:
                bound = "max" if limit[key] >= quota.max[key] else "share of what its parent has"
                texts = [quantity_text(key, value) for value in (lacks, limit[key])]
                yield (
                    f"{place} lacks {texts[0]} {key}: it may use {texts[1]}, its {bound}, and uses "
                    f"{quantity_text(key, used.get(key, 0))}; {quantity_text(key, asked)} more is "
                    "requested"
                )
        if own and not waiting.preemptible:
            fixed = state.non_preemptible_used(one)
            for key, asked in sorted(waiting.need.items()):
                lacks = fixed.get(key, 0) + asked - quota.min.get(key, 0)
                if key in quota.min and lacks > 0:
                    yield (
                        f"{place} lacks {quantity_text(key, lacks)} {key} of its min for pods that "
                        "are not preemptible"
                    )


def find_advice(quotas: Quotas, waiting: Waiting, options: AdmissionOptions) -> QuotaAdvice | None:
    """Return the smallest change found that gives a quota room; None: there is none, or it has it.

    First larger values of max, then guarantees besides, then more nodes or a larger tree.
    """
    if _admits(quotas, waiting, options):
        return None
    attempt = _Attempt(quotas, waiting, options)
    for step in (attempt.connect, attempt.raise_max, attempt.raise_min, attempt.enlarge):
        if step():
            return attempt.advice()
    return None


def sentences(
    quotas: Quotas, waiting: Waiting, options: AdmissionOptions, nodes: View
) -> Iterator[str]:
    """Yield all that an explanation says of a pod that its quota has no room for."""
    if _admits(quotas, waiting, options):
        return
    for number, text in enumerate(insufficient_quotas(quotas, waiting, options)):
        if number < MAX_LEVELS:
            yield text
    state = quotas.state_of(waiting.quota)
    advice = find_advice(quotas, waiting, options)
    if advice is not None and (advice.changes or advice.nodes):
        texts = [str(one) for one in advice.changes]
        if advice.nodes:
            texts.append(f"nodes with {list_text(advice.nodes)} more")
        yield f"quota {waiting.quota} would have room with {', and '.join(texts)}"
    if state is not None and waiting.quota not in state.tree.detached:
        room = {
            key: max(limit - state.used(waiting.quota).get(key, 0), 0)
            for key, limit in state.limit(waiting.quota).items()
            if waiting.need.get(key, 0) > 0
        }
        if room and any(room.values()):
            yield f"quota {waiting.quota} has room for at most {list_text(room)} now"
    if not has_room(nodes, waiting.request):
        yield f"besides, no node has {list_text(waiting.request)} free"


def has_room(nodes: View, need: Amounts) -> bool:
    """Whether the amounts are free on some node."""
    free = nodes.allocatable - nodes.requested
    fits = free[:, :0].all(axis=1)
    for key, amount in need.items():
        column = nodes.resources.get(key)
        if amount and column is None:
            return False
        if column is not None:
            fits &= free[:, column] >= amount
    return bool(fits.any())


def _admits(quotas: Quotas, waiting: Waiting, options: AdmissionOptions) -> bool:
    state = quotas.state_of(waiting.quota)
    if state is None:
        return False
    return (
        admission(
            state,
            waiting.quota,
            waiting.need,
            preemptible=waiting.preemptible,
            options=options,
        )
        is None
    )


class _Attempt:
    """Quotas with ever larger changes."""

    def __init__(self, quotas: Quotas, waiting: Waiting, options: AdmissionOptions) -> None:
        self._before = quotas
        self._now = quotas
        self._waiting = waiting
        self._options = options
        self._objects = dict(quotas.objects)
        self._nodes: Amounts = {}

    def advice(self) -> QuotaAdvice:
        """Return the changes made up to now."""
        changed = {
            name: quota
            for name, quota in self._objects.items()
            if quota is not self._before.objects.get(name)
        }
        changes = [
            one
            for name, quota in changed.items()
            for one in _changes(self._before.objects[name], quota)
        ]
        return QuotaAdvice(objects=changed, changes=tuple(changes), nodes=self._nodes)

    def connect(self) -> bool:
        """Move a quota that no path leads to below the root."""
        state = self._state()
        if state is None or self._waiting.quota not in state.tree.detached:
            return False
        self._put(self._waiting.quota, partial(replace, parent=ROOT_QUOTA))
        return self._try()

    def raise_max(self) -> bool:
        """Raise max of the quota and of those above it to the future usage."""
        state = self._state()
        if state is None:
            return False
        for name in state.tree.path(self._waiting.quota):
            wanted = self._wanted(state, name)
            self._put(name, partial(_with_max, wanted=wanted))
        return self._try()

    def raise_min(self) -> bool:
        """Guarantee what will be used, and so much in all quotas above."""
        state = self._state()
        if state is None:
            return False
        own, above = self._waiting.quota, state.tree.path(self._waiting.quota)[-2::-1]
        wanted = self._wanted(state, own)
        if own in FIXED:
            return False
        if not self._waiting.preemptible:
            used = state.non_preemptible_used(own)
            more = {key: used.get(key, 0) + value for key, value in self._asked(own).items()}
            wanted = {key: max(value, more.get(key, 0)) for key, value in wanted.items()}
        self._put(own, partial(_with_min, wanted=wanted))
        for name in above:
            sums: dict[str, int] = {}
            for quota in self._objects.values():
                if quota.parent == name:
                    for key in wanted:
                        sums[key] = sums.get(key, 0) + quota.min.get(key, 0)
            self._put(name, partial(_with_min, wanted=sums))
        return self._try()

    def enlarge(self) -> bool:
        """Add nodes, or enlarge the total of a tree with an id."""
        state = self._state()
        if state is None:
            return False
        size = dict(self._asked(self._waiting.quota))
        for key in size:
            low = sum(
                quota.min.get(key, 0) for quota in state.tree.quotas if quota.parent == ROOT_QUOTA
            )
            size[key] = max(size[key], low - state.available.get(key, 0), 1)
        root = tree_root(state.tree) if state.tree.id else None
        for _ in range(MAX_ENLARGEMENTS):
            if state.tree.id:
                if root is None:
                    return False
                before = root.total or {}
                total = {**before, **{key: before.get(key, 0) + more for key, more in size.items()}}
                self._put(root.name, partial(replace, total=total))
            else:
                self._nodes = size
            if self._try():
                return True
            size = {key: 2 * more for key, more in size.items()}
        self._nodes = {}
        return False

    def _state(self) -> QuotaState | None:
        return self._now.state_of(self._waiting.quota)

    def _asked(self, name: str) -> Amounts:
        quota = self._objects.get(name)
        high = {} if quota is None else quota.max
        return {key: value for key, value in self._waiting.need.items() if value and key in high}

    def _wanted(self, state: QuotaState, name: str) -> Amounts:
        """Return the future usage of a quota, out of its requests."""
        used = state.used(name)
        wanted = {key: used.get(key, 0) + value for key, value in self._asked(name).items()}
        if self._options.all_resources and name == self._waiting.quota:
            quota = self._objects[name]
            wanted |= {key: used[key] for key in used if key in quota.max and key not in wanted}
        return wanted

    def _put(self, name: str, change: Callable[[ElasticQuota], ElasticQuota]) -> None:
        quota = self._objects.get(name)
        if quota is not None:
            changed = change(quota)
            if changed != quota:
                self._objects[name] = changed

    def _try(self) -> bool:
        nodes = dict(self._before.nodes)
        for key, more in self._nodes.items():
            nodes[key] = nodes.get(key, 0) + more
        self._now = self._before.with_objects(self._objects.values()).with_nodes(nodes)
        return _admits(self._now, self._waiting, self._options)


def _with_max(quota: ElasticQuota, wanted: Amounts) -> ElasticQuota:
    high = {key: max(value, wanted.get(key, 0)) for key, value in quota.max.items()}
    declared = quota.weight != quota.max
    return replace(quota, max=high, weight=quota.weight if declared else high)


def _with_min(quota: ElasticQuota, wanted: Amounts) -> ElasticQuota:
    low = dict(quota.min)
    for key, value in wanted.items():
        if value > low.get(key, 0):
            low[key] = value
    return replace(_with_max(quota, low), min=low)


def _changes(before: ElasticQuota, after: ElasticQuota) -> Iterator[QuotaChange]:
    name = after.name
    if before.parent != after.parent:
        yield QuotaChange(name, "parent", "", before.parent, after.parent)
    for part, one, other in (
        ("max", before.max, after.max),
        ("min", before.min, after.min),
        ("total", before.total or {}, after.total or {}),
    ):
        for key in sorted(other):
            if one.get(key, 0) != other[key]:
                yield QuotaChange(name, part, key, one.get(key, 0), other[key])
