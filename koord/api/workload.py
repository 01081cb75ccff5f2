"""Workloads of Kubernetes' own API: which pods belong together, and how many at least.

Source: Kubernetes 1.35, k8s.io/api/scheduling/v1alpha1 (Workload).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.fields import Fields
from koord.util.errors import InvalidObject

API_VERSION = "scheduling.k8s.io/v1alpha1"
KIND = "Workload"
PLURAL = "workloads"

MAX_GROUPS = 8
WAIT = 300.0  # seconds in which all members of a gang must have a node; the API has no other
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A Workload of the API server."""

    namespace: str
    name: str
    minimums: Mapping[str, int | None]  # of its pod groups, by name; None: of policy basic

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_workload(item: object) -> Workload:
    """Return a Workload from its JSON.

    Raises:
        InvalidObject: it is not what the API server would take.
    """
    fields = Fields(item, "workload")
    meta, spec = fields.nested("metadata"), fields.nested("spec")
    minimums: dict[str, int | None] = {}
    for group in spec.objects("podGroups"):
        if len(minimums) == MAX_GROUPS:
            wanted = f"at most {MAX_GROUPS} pod groups"
            raise InvalidObject(spec.path("podGroups"), wanted=wanted, found="more")
        name = group.required_text("name")
        if name in minimums:
            raise InvalidObject(group.path("name"), wanted="each name once", found=name)
        minimums[name] = _minimum(group.nested("policy"))
    return Workload(
        namespace=meta.required_text("namespace"),
        name=meta.required_text("name"),
        minimums=minimums,
    )


def _minimum(policy: Fields) -> int | None:
    is_gang, is_basic = policy.get("gang") is not None, policy.get("basic") is not None
    if is_gang == is_basic:
        found = "both" if is_gang else "none"
        raise InvalidObject(policy.path("gang"), wanted="one of basic and gang", found=found)
    if is_basic:
        return None
    gang = policy.nested("gang")
    minimum = gang.integer("minCount") or 0
    if not 1 <= minimum <= _MAX_INT32:
        wanted = f"1 to {_MAX_INT32}"
        raise InvalidObject(gang.path("minCount"), wanted=wanted, found=minimum)
    return minimum
