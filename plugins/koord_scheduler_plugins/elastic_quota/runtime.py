"""Runtime quotas: what each quota of a tree requests, uses and may use, computed from sums.

The whole tree is computed top-down, all siblings at once; a later state takes over from the one
before it what does not depend on the change. Every resource is computed by itself.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from koord.api.elasticquota import ROOT_QUOTA, Amounts
from koord_scheduler_plugins.elastic_quota.columns import (
    Column,
    RuntimeOptions,
    Sums,
    changed_column,
    full_column,
)
from koord_scheduler_plugins.elastic_quota.tree import FIXED, ROOT, Tree

_NOTHING: Amounts = {}
_NO_SUMS: Mapping[str, Amounts] = {}


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The quotas of a tree with all that is computed of them. Immutable."""

    tree: Tree
    options: RuntimeOptions
    sums: Sums
    total: Amounts
    columns: Mapping[str, Column]  # by resource

    def limit(self, name: str) -> Amounts:
        """Return how much a quota may use now: the one limit for checks, display and revoking.

        A resource that it does not have is not limited. A quota that is detached from its tree
        may use nothing.
        """
        quota = self.tree.find(name)
        if quota is None:
            return _NOTHING
        if name in self.tree.detached:
            return dict.fromkeys(quota.max, 0)
        if name in self.tree.fixed or not self.options.enabled:
            return quota.max
        return {key: amount for key, amount in self.runtime(name).items() if key in quota.max}

    def runtime(self, name: str) -> Amounts:
        """Return the amounts that a quota has from its parent, also of what its max lacks."""
        place = self.tree.places.get(name)
        if place is None:
            return {} if name != ROOT_QUOTA else self.available
        return {
            resource: amount
            for resource, column in self.columns.items()
            if (amount := column.runtime[place]) is not None
        }

    @property
    def available(self) -> Amounts:
        """The total without what default and system quota use."""
        return _available(self.total, self.sums)

    def used(self, name: str) -> Amounts:
        """Return what the pods of a quota and of those below it use."""
        return self._sums(name, "used", self.sums.used)

    def non_preemptible_used(self, name: str) -> Amounts:
        return self._sums(name, "non_preemptible_used", self.sums.non_preemptible_used)

    def non_preemptible_requested(self, name: str) -> Amounts:
        own = self.sums.non_preemptible_requested
        return self._sums(name, "non_preemptible_requested", own)

    def request(self, name: str) -> Amounts:
        """Return what a quota asks its parent for, before its max limits that."""
        return self._sums(name, "request", self.sums.requested)

    def child_request(self, name: str) -> Amounts:
        """Return what its own pods and the quotas below it, each within its max, ask for."""
        return self._sums(name, "child_request", self.sums.requested)

    def allocated(self, name: str) -> Amounts:
        return self._sums(name, "allocated", _NO_SUMS)

    def guaranteed(self, name: str) -> Amounts:
        return self._sums(name, "guaranteed", _NO_SUMS)

    def scaled_min(self, name: str) -> Amounts:
        """Return the min of a quota as it counts where those of siblings exceed what is there."""
        return self._sums(name, "scaled_min", _NO_SUMS)

    def _sums(self, name: str, kind: str, own: Mapping[str, Amounts]) -> Amounts:
        """Return a list without its zeros; for a quota outside of the tree that of its own pods."""
        place = self.tree.places.get(name)
        if place is not None:
            found = {key: getattr(column, kind)[place] for key, column in self.columns.items()}
        elif name == ROOT_QUOTA:
            found = self._root_sums(kind, own)
        else:
            found = dict(own.get(name, _NOTHING))
        return {key: amount for key, amount in found.items() if amount}

    def _root_sums(self, kind: str, own: Mapping[str, Amounts]) -> dict[str, int]:
        kind = "limited" if kind in ("request", "child_request") else kind
        top = self.tree.children[ROOT]
        found = {
            key: sum(getattr(column, kind)[place] for place in top)
            for key, column in self.columns.items()
        }
        if "used" in kind:
            for name in FIXED:
                for key, amount in own.get(name, _NOTHING).items():
                    found[key] = found.get(key, 0) + amount
        return found


def compute(
    tree: Tree, sums: Sums, total: Amounts, options: RuntimeOptions | None = None
) -> QuotaState:
    """Return the state of a tree; total: what it has to give away."""
    options = options or RuntimeOptions()
    available = _available(total, sums)
    columns = {
        resource: full_column(resource, tree, sums, available, options)
        for resource in sorted({key for quota in tree.quotas for key in quota.max})
    }
    return QuotaState(tree, options, sums, total, columns)


def update(
    state: QuotaState, tree: Tree, sums: Sums, total: Amounts, changed: Collection[str]
) -> QuotaState:
    """Return compute of the new inputs, and compute only what depends on the change.

    tree: that of state, or one made of it by with_quota. changed: names of all quotas that differ
    from those of state, or whose sums do.
    """
    if tree.places is not state.tree.places:
        return compute(tree, sums, total, state.options)
    options, available = state.options, _available(total, sums)
    places = [tree.places[name] for name in changed if name in tree.places]
    had: set[str] = set().union(*(state.tree.quotas[place].max for place in places))
    has: set[str] = set().union(*(tree.quotas[place].max for place in places))
    columns = dict(state.columns)
    for resource in had - has:
        if not any(resource in quota.max for quota in tree.quotas):
            del columns[resource]
    for resource, column in list(columns.items()):
        columns[resource] = changed_column(resource, column, tree, sums, available, options, places)
    for resource in has - set(columns):
        columns[resource] = full_column(resource, tree, sums, available, options)
    return QuotaState(tree, options, sums, total, columns)


def _available(total: Amounts, sums: Sums) -> Amounts:
    left = dict(total)
    for name in FIXED:
        for resource, amount in sums.used.get(name, _NOTHING).items():
            if resource in left:
                left[resource] -= amount
    return left
