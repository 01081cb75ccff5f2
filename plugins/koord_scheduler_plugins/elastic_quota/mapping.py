"""Which quota a pod belongs to: by its label, its namespace, or the default quota."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord.api.elasticquota import DEFAULT_QUOTA, NAME, ROOT_QUOTA, ElasticQuota
from koord_scheduler_plugins.elastic_quota.tree import FIXED, age


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
