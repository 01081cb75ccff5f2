"""Trees of quotas: which quota is whose child, what a tree gives away, which pods are in which."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from koord.api.elasticquota import (
    DEFAULT_QUOTA,
    NAME,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    Amounts,
    ElasticQuota,
)

ROOT = -1  # the place of the abstract root above all quotas of a tree
FIXED = (DEFAULT_QUOTA, SYSTEM_QUOTA)


@dataclass(frozen=True, slots=True)
class Tree:
    """The quotas of a tree; those that no way leads to from the root are detached from it."""

    id: str = ""
    quotas: tuple[ElasticQuota, ...] = ()  # parents before children; siblings together, by name
    parents: tuple[int, ...] = ()  # places in quotas, or ROOT
    children: tuple[tuple[int, ...], ...] = ((),)  # of each quota; the last one is the root's
    places: Mapping[str, int] = field(default_factory=dict)  # name -> place in quotas
    fixed: Mapping[str, ElasticQuota] = field(default_factory=dict)  # default and system quota
    detached: Mapping[str, ElasticQuota] = field(default_factory=dict)  # their limit is 0
    problems: Mapping[str, str] = field(default_factory=dict)  # why, by name of the quota

    def find(self, name: str) -> ElasticQuota | None:
        place = self.places.get(name)
        if place is not None:
            return self.quotas[place]
        return self.fixed.get(name) or self.detached.get(name)

    def path(self, name: str) -> tuple[str, ...]:
        """Names from the topmost ancestor below the root down to the quota itself."""
        found, place = [], self.places.get(name, ROOT)
        while place != ROOT:
            found.append(self.quotas[place].name)
            place = self.parents[place]
        return tuple(reversed(found)) or (name,)

    def with_quota(self, quota: ElasticQuota) -> "Tree":
        """With another version of a quota that is in its place already.

        Raises:
            ValueError: it is not there, or has another parent now: the tree must be built anew.
        """
        place = self.places.get(quota.name, ROOT)
        if place == ROOT or self.quotas[place].parent != quota.parent:
            raise ValueError(f"quota {quota.name} is not in its place")
        quotas = (*self.quotas[:place], quota, *self.quotas[place + 1 :])
        return replace(self, quotas=quotas)


def age(quota: ElasticQuota) -> tuple[float, str, str]:
    """Sort key: the oldest quota first, then by name; one of unknown age is the youngest."""
    return (inf if quota.created is None else quota.created, quota.name, quota.namespace)


def unique(quotas: Iterable[ElasticQuota]) -> tuple[dict[str, ElasticQuota], dict[str, str]]:
    """Return quotas by name, and what is wrong with others of the same name by their key.

    The oldest one counts.
    """
    found: dict[str, ElasticQuota] = {}
    problems: dict[str, str] = {}
    for quota in sorted(quotas, key=age):
        first = found.setdefault(quota.name, quota)
        if first is not quota:
            problems[quota.key] = (
                f"quota {quota.name} is ignored: {first.key} has the same name and is older"
            )
    return found, problems


def build_trees(
    quotas: Mapping[str, ElasticQuota],
    *,
    multi_tree: bool = False,
    parents: Mapping[str, str] | None = None,
) -> dict[str, Tree]:
    """Return the trees of quotas by tree id; the default tree "" is always there.

    parents: the last good parent of quotas, which counts where the declared one would make a
    circle. Without multi_tree all quotas are in the default tree.
    """
    groups: dict[str, dict[str, ElasticQuota]] = {"": {}}
    for name, quota in quotas.items():
        if name != ROOT_QUOTA:
            tree_id = quota.tree if multi_tree and name not in FIXED else ""
            groups.setdefault(tree_id, {})[name] = quota
    return {tree_id: _build(tree_id, group, parents or {}) for tree_id, group in groups.items()}


def good_parents(trees: Iterable[Tree]) -> dict[str, str]:
    """Return the parent of every quota that has its place in a tree."""
    return {quota.name: quota.parent for tree in trees for quota in tree.quotas}


def _build(tree_id: str, quotas: Mapping[str, ElasticQuota], known: Mapping[str, str]) -> Tree:
    fixed = {name: quotas[name] for name in FIXED if name in quotas}
    own = {name: quota for name, quota in quotas.items() if name not in FIXED}
    problems: dict[str, str] = {}
    for name, circle in _circles(own):
        text = f"quota {name} is its own ancestor: {' -> '.join(circle[:16])}"
        problems[name] = text
        if name in known and known[name] != own[name].parent:
            own[name] = replace(own[name], parent=known[name])
            problems[name] = f"{text}; its parent stays {known[name]}"
    below: dict[str, list[str]] = {}
    for name in sorted(own):
        below.setdefault(own[name].parent, []).append(name)
    order, parents, places = _placed(below)
    children: list[list[int]] = [[] for _ in range(len(order) + 1)]
    for place, parent in enumerate(parents):
        children[parent].append(place)
    detached = {name: quota for name, quota in own.items() if name not in places}
    for name, quota in detached.items():
        problems.setdefault(name, _why_detached(quota, own))
    return Tree(
        id=tree_id,
        quotas=tuple(own[name] for name in order),
        parents=tuple(parents),
        children=tuple(map(tuple, children)),
        places=places,
        fixed=fixed,
        detached=detached,
        problems=problems,
    )


def _placed(below: Mapping[str, list[str]]) -> tuple[list[str], list[int], dict[str, int]]:
    """The names that can be reached from the root, level by level, with their parents' places."""
    order: list[str] = []
    parents: list[int] = []
    level = [(name, ROOT) for name in below.get(ROOT_QUOTA, ())]
    while level:
        following: list[tuple[str, int]] = []
        for name, parent in level:
            following += [(child, len(order)) for child in below.get(name, ())]
            order.append(name)
            parents.append(parent)
        level = following
    return order, parents, {name: place for place, name in enumerate(order)}


def _circles(quotas: Mapping[str, ElasticQuota]) -> Iterator[tuple[str, list[str]]]:
    """Every quota that is its own ancestor, with the way from it to itself."""
    seen: set[str] = set()
    for start in sorted(quotas):
        way: dict[str, None] = {}
        name = start
        while name in quotas and name not in seen and name not in way:
            way[name] = None
            name = quotas[name].parent
        if name in way:
            names = list(way)
            circle = names[names.index(name) :]
            for at, one in enumerate(circle):
                yield one, [*circle[at:], *circle[:at], one]
        seen |= set(way)


def _why_detached(quota: ElasticQuota, quotas: Mapping[str, ElasticQuota]) -> str:
    if quota.parent not in quotas:
        return f"{quota.name} has parentName {quota.parent} but it does not exist"
    return f"{quota.name} has parentName {quota.parent}, which is not connected to the root"


def tree_totals(nodes: Amounts, trees: Mapping[str, Tree]) -> dict[str, Amounts]:
    """Return what each tree has to give away; nodes: the sum of what all nodes have.

    A tree with an id has what its root declares; that is taken from the default tree, unless the
    root says not to. Of several roots the oldest one counts.
    """
    totals: dict[str, Amounts] = {}
    rest = dict(nodes)
    for tree_id, tree in trees.items():
        if tree_id:
            root = tree_root(tree)
            totals[tree_id] = {} if root is None or root.total is None else root.total
            if root is not None and not root.ignores_default_tree:
                for resource, amount in totals[tree_id].items():
                    rest[resource] = rest.get(resource, 0) - amount
    totals[""] = {resource: max(amount, 0) for resource, amount in rest.items()}
    return totals


def tree_root(tree: Tree) -> ElasticQuota | None:
    """Return the quota that declares the total of a tree with an id."""
    return min((quota for quota in tree.quotas if quota.is_root), key=age, default=None)


@dataclass(frozen=True, slots=True)
class QuotaIndex:
    """How pods find their quota."""

    trees: Mapping[str, str] = field(default_factory=dict)  # name -> tree id of all quotas
    own: frozenset[str] = frozenset()  # namespaces that have a quota named like them
    bound: Mapping[str, str] = field(default_factory=dict)  # namespace -> quota that lists it
    problems: Mapping[str, str] = field(default_factory=dict)  # by name of the quota
    default: bool = True  # pods of no quota belong to the default quota

    def quota_of(self, labels: Mapping[str, str], namespace: str) -> tuple[str, str] | None:
        """Return name and tree id of the quota of a pod; None: it has none."""
        name = labels.get(NAME, "")
        if not name and self.default:
            name = namespace if namespace in self.own else self.bound.get(namespace, "")
        tree = self.trees.get(name)
        if name and tree is not None:
            return name, tree
        return (DEFAULT_QUOTA, "") if self.default else None


def index_quotas(
    quotas: Iterable[ElasticQuota], *, multi_tree: bool = False, default: bool = True
) -> QuotaIndex:
    """Return the index of quotas that have different names.

    Of several quotas that list a namespace, the oldest one has it; then the first by name.
    default: False with the gate DisableDefaultQuota.
    """
    trees, bound = dict.fromkeys(FIXED, ""), dict[str, str]()
    own: set[str] = set()
    problems: dict[str, str] = {}
    for quota in sorted(quotas, key=age):
        if quota.name == ROOT_QUOTA:
            continue
        trees[quota.name] = quota.tree if multi_tree and quota.name not in FIXED else ""
        if quota.name == quota.namespace:
            own.add(quota.namespace)
        for namespace in quota.namespaces:
            first = bound.setdefault(namespace, quota.name)
            if first != quota.name:
                problems.setdefault(
                    quota.name,
                    f"quota {quota.name}'s annotation namespace {namespace} is already bound to "
                    f"quota {first}",
                )
    return QuotaIndex(trees, frozenset(own), bound, problems, default)
