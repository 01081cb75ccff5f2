"""The quota that an ElasticQuotaProfile makes of the nodes that it selects: the root of a tree."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from koord.api.elasticquota import (
    API_VERSION,
    IS_ROOT,
    KIND,
    PROFILE,
    TOTAL_RESOURCE,
    TREE_ID,
    UNSCHEDULABLE_RESOURCE,
    Amounts,
    ElasticQuotaProfile,
    quantity_text,
)

ROOT_MAX = (2**63 - 1) // 2000  # units of each resource; as good as no limit
_RATIO = re.compile(r"[0-9]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class ProfileNode:
    """A node as profiles look at it."""

    labels: Mapping[str, str]
    allocatable: Amounts
    schedulable: bool = True  # ready and not cordoned


def tree_id(profile: ElasticQuotaProfile) -> str:
    """Return the id of the tree of a profile: the one it has, or the FNV-1a hash of its key."""
    if profile.tree:
        return profile.tree
    found = 0xCBF29CE484222325
    for byte in profile.key.encode(errors="surrogatepass"):
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return str(found)


def root_quota(profile: ElasticQuotaProfile, nodes: Iterable[ProfileNode]) -> dict[str, object]:
    """Return the ElasticQuota of a profile as JSON.

    Source: Koordinator, pkg/quota-controller/profile.
    """
    total: dict[str, int] = {}
    unschedulable: dict[str, int] = {}
    for node in nodes:
        if profile.selector.matches(node.labels):
            for sums in (total,) if node.schedulable else (total, unschedulable):
                for key, amount in node.allocatable.items():
                    sums[key] = sums.get(key, 0) + amount
    ratio = _ratio(profile.ratio)
    annotations = {
        TOTAL_RESOURCE: _list_text(total, ratio),
        UNSCHEDULABLE_RESOURCE: _list_text(unschedulable, ratio),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "namespace": profile.namespace,
            "name": profile.quota,
            "labels": {
                PROFILE: profile.name,
                **profile.labels,
                TREE_ID: tree_id(profile),
                IS_ROOT: "true",
            },
            "annotations": annotations,
        },
        "spec": {
            "min": {
                key: quantity_text(key, int(total.get(key, 0) * ratio)) for key in profile.resources
            },
            "max": {key: str(ROOT_MAX) for key in profile.resources},
        },
    }


def _ratio(text: str) -> Fraction:
    """The share of nodes that the quota gets; what is not above 0 and at most 1 stands for 1."""
    if _RATIO.fullmatch(text):
        try:
            found = Fraction(text)
        except ValueError:
            return Fraction(1)
        if 0 < found <= 1:
            return found
    return Fraction(1)


def _list_text(amounts: Amounts, ratio: Fraction) -> str:
    found = {key: quantity_text(key, int(amounts[key] * ratio)) for key in sorted(amounts)}
    return json.dumps(found, separators=(",", ":"))
