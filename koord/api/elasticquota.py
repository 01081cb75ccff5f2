"""Quotas as ElasticQuota and ElasticQuotaProfile objects declare them: keys, and both objects.

Amounts are whole numbers: cpu in thousandths of a core, all else in units.
Source: Koordinator, apis/extension/elastic_quota.go and apis/quota/v1alpha1; scheduler-plugins,
ElasticQuota v1alpha1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.labelselector import LabelSelector, parse_selector
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

API_VERSION = "scheduling.sigs.k8s.io/v1alpha1"
KIND = "ElasticQuota"
PLURAL = "elasticquotas"
PROFILE_API_VERSION = "quota.koordinator.sh/v1alpha1"
PROFILE_KIND = "ElasticQuotaProfile"
PROFILE_PLURAL = "elasticquotaprofiles"

ROOT_QUOTA = "koordinator-root-quota"
SYSTEM_QUOTA = "koordinator-system-quota"
DEFAULT_QUOTA = "koordinator-default-quota"

PREFIX = "quota.scheduling.koordinator.sh/"
NAME = f"{PREFIX}name"
"""A label of a pod: the name of its quota."""
PREEMPTIBLE = f"{PREFIX}preemptible"
"""A label of a pod; "false": it counts against min, is never a victim and never revoked."""
IS_PARENT = f"{PREFIX}is-parent"
PARENT = f"{PREFIX}parent"
ALLOW_LENT_RESOURCE = f"{PREFIX}allow-lent-resource"
TREE_ID = f"{PREFIX}tree-id"
IS_ROOT = f"{PREFIX}is-root"
IGNORE_DEFAULT_TREE = f"{PREFIX}ignore-default-tree"
PROFILE = f"{PREFIX}profile"
ALLOW_FORCE_UPDATE = f"{PREFIX}allow-force-update"

SHARED_WEIGHT = f"{PREFIX}shared-weight"
NAMESPACES = f"{PREFIX}namespaces"
TOTAL_RESOURCE = f"{PREFIX}total-resource"
UNSCHEDULABLE_RESOURCE = f"{PREFIX}unschedulable-resource"
RESOURCE_KEYS = f"{PREFIX}resource-keys"
ADMISSION = f"{PREFIX}admission"
STRICT_KEYS = f"{PREFIX}max-strict-check-resource-keys"

RUNTIME = f"{PREFIX}runtime"
REQUEST = f"{PREFIX}request"
CHILD_REQUEST = f"{PREFIX}child-request"
GUARANTEED = f"{PREFIX}guaranteed"
ALLOCATED = f"{PREFIX}allocated"
NON_PREEMPTIBLE_REQUEST = f"{PREFIX}non-preemptible-request"
NON_PREEMPTIBLE_USED = f"{PREFIX}non-preemptible-used"

CONDITIONS = f"{PREFIX}conditions"
"""Written by koord-scheduler alone: what is wrong with a quota. Koordinator does not have it."""

MAX_AMOUNT = 2**63 - 1  # larger ones are cut, as in Kubernetes
MAX_RESOURCES = 64  # resources of a list
MAX_NAMESPACES = 4096  # namespaces of a quota
_MAX_TEXT = 256 * 1024  # characters of an annotation
DEPRECATED = {
    "koordinator.sh/batch-cpu": "kubernetes.io/batch-cpu",
    "koordinator.sh/batch-memory": "kubernetes.io/batch-memory",
}

T = TypeVar("T")
Amounts = Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticQuota:
    """A quota. Its name alone is its identity, over all namespaces."""

    namespace: str = ""
    name: str
    uid: str = ""
    created: float | None = None  # Unix seconds
    tree: str = ""  # tree id; "": the default tree
    parent: str = ROOT_QUOTA
    is_parent: bool = False
    lends: bool = True  # min that is not requested is lent to siblings
    is_root: bool = False  # the root of a tree with an id
    ignores_default_tree: bool = False  # its total is not taken from the default tree
    forced: bool = False  # sums of min are not checked
    min: Amounts = field(default_factory=dict)
    max: Amounts = field(default_factory=dict)
    weight: Amounts = field(default_factory=dict)  # of the resources of max, as it counts
    namespaces: tuple[str, ...] = ()  # whose pods belong to it
    total: Amounts | None = None  # of the tree that it is the root of; None: not declared
    admission: Amounts | None = None  # limit of created pods; None: max
    strict: tuple[str, ...] = ()  # resources whose max must not be below what is used
    problems: tuple[str, ...] = ()  # texts for a condition

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticQuotaProfile:
    """A quota that is to be as large as the nodes that a selector matches."""

    namespace: str
    name: str
    quota: str
    tree: str = ""
    labels: Mapping[str, str]  # for the quota
    ratio: str = ""  # as it is written
    selector: LabelSelector
    resources: tuple[str, ...] = ("cpu", "memory")
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def _weight(declared: Amounts, high: Amounts) -> Amounts:
    """The weight that counts: max where none is declared."""
    if not any(declared.values()):
        return high
    return {key: declared.get(key, amount) for key, amount in high.items()}


def read_elastic_quota(item: object) -> ElasticQuota:
    """Return an ElasticQuota from its JSON.

    Raises:
        InvalidObject: it has no name, its metadata have the wrong type, or min or max make no
            sense.
    """
    fields = Fields(item, "elasticquota")
    meta = fields.nested("metadata")
    labels, annotations = (_texts(meta, key) for key in ("labels", "annotations"))
    problems: list[str] = []
    spec = fields.nested("spec")
    low, high = (_amounts(spec.nested(key).raw, spec.path(key)) for key in ("min", "max"))
    weight = _declared(annotations, SHARED_WEIGHT, _amounts, problems)
    names = _declared(annotations, NAMESPACES, _names, problems) or ()
    if len(names) > MAX_NAMESPACES:
        problems.append(f"{NAMESPACES}: wanted at most {MAX_NAMESPACES}, found {len(names)}")
        names = names[:MAX_NAMESPACES]
    return ElasticQuota(
        namespace=meta.text("namespace"),
        name=meta.required_text("name"),
        uid=meta.text("uid"),
        created=meta.time("creationTimestamp"),
        tree=labels.get(TREE_ID, ""),
        parent=labels.get(PARENT) or ROOT_QUOTA,
        is_parent=labels.get(IS_PARENT) == "true",
        lends=labels.get(ALLOW_LENT_RESOURCE) != "false",
        is_root=labels.get(IS_ROOT) == "true",
        ignores_default_tree=labels.get(IGNORE_DEFAULT_TREE) == "true",
        forced=labels.get(ALLOW_FORCE_UPDATE) == "true",
        min=low,
        max=high,
        weight=_weight(weight or {}, high),
        namespaces=names,
        total=_declared(annotations, TOTAL_RESOURCE, _amounts, problems),
        admission=_declared(annotations, ADMISSION, _amounts, problems),
        strict=_declared(annotations, STRICT_KEYS, _names, problems) or (),
        problems=tuple(problems),
    )


def read_elastic_quota_profile(item: object) -> ElasticQuotaProfile:
    """Return an ElasticQuotaProfile from its JSON.

    Raises:
        InvalidObject: a name is missing, or a field of its spec has the wrong type.
    """
    fields = Fields(item, "elasticquotaprofile")
    meta, spec = fields.nested("metadata"), fields.nested("spec")
    problems: list[str] = []
    resources = _declared(_texts(meta, "annotations"), RESOURCE_KEYS, _names, problems)
    if resources is not None and len(resources) > MAX_RESOURCES:
        wanted = f"at most {MAX_RESOURCES} resources"
        problems.append(f"{RESOURCE_KEYS}: wanted {wanted}, found {len(resources)}")
        resources = None
    return ElasticQuotaProfile(
        namespace=meta.required_text("namespace"),
        name=meta.required_text("name"),
        quota=spec.required_text("quotaName"),
        tree=_texts(meta, "labels").get(TREE_ID, ""),
        labels=spec.texts("quotaLabels"),
        ratio=spec.text("resourceRatio"),
        selector=parse_selector(spec.get("nodeSelector") or {}, spec.path("nodeSelector")),
        resources=("cpu", "memory") if resources is None else resources,
        problems=tuple(problems),
    )


def is_preemptible(labels: Mapping[str, str]) -> bool:
    """Whether a pod may be evicted for the sake of its quota."""
    return labels.get(PREEMPTIBLE) != "false"


def amounts_of(values: Iterable[tuple[str, object]], where: str) -> dict[str, int]:
    """Return a resource list as amounts.

    Raises:
        InvalidObject: there are too many, or one is no quantity, or below 0.
    """
    found: dict[str, int] = {}
    for name, value in values:
        place = f"{where}.{name[:80]}"
        try:
            quantity = Quantity.parse(value)
        except ValueError as err:
            raise InvalidObject(place, wanted="a quantity", found=value) from err
        amount = quantity.milli if name == "cpu" else quantity.integer
        if amount < 0:
            raise InvalidObject(place, wanted="0 or more", found=value)
        found[DEPRECATED.get(name, name)] = min(amount, MAX_AMOUNT)
        if len(found) > MAX_RESOURCES:
            raise InvalidObject(where, wanted=f"at most {MAX_RESOURCES} resources", found="more")
    return found


def quantity_text(resource: str, amount: int) -> str:
    """Return an amount as the quantity of the annotations that the scheduler writes."""
    return str(Quantity.of_milli(amount)) if resource == "cpu" else str(amount)


def _declared(
    annotations: Mapping[str, str],
    key: str,
    read: Callable[[object, str], T],
    problems: list[str],
) -> T | None:
    """The value of an annotation; None: it has none, or one that makes no sense."""
    text = annotations.get(key)
    if not text:
        return None
    if len(text) > _MAX_TEXT:
        problems.append(f"{key}: wanted at most {_MAX_TEXT} characters, found {len(text)}")
        return None
    try:
        return read(parse_json(text, key), key)
    except InvalidObject as err:
        problems.append(str(err))
        return None


def _amounts(value: object, where: str) -> Amounts:
    return amounts_of(_items(Fields(value, where).raw), where)


def _names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidObject(where, wanted="a list of texts", found=value)
    return tuple(dict.fromkeys(value))


def _items(values: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    return ((str(name), value) for name, value in values.items())


def _texts(meta: Fields, key: str) -> dict[str, str]:
    values = meta.nested(key).raw
    return {str(name): value for name, value in values.items() if isinstance(value, str)}
