"""The topology spec of a gang: in which layers of the network its pods are to be together.

Source: Koordinator, apis/extension/coscheduling.go (NetworkTopologySpec).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.api.fields import Fields
from koord.util.errors import InvalidObject

NETWORK_TOPOLOGY_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
NETWORK_TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
"""An annotation of a pod: pods with the same value attract one another."""

MAX_SPEC_BYTES = 4096
MAX_RULES = 32
MAX_LAYER_NAME = 253  # characters
_MAX_INT32 = 2**31 - 1


class GatherStrategy(StrEnum):
    """How much it matters that the pods of a gang are in one place of a layer."""

    MUST = "MustGather"
    PREFER = "PreferGather"


@dataclass(frozen=True, slots=True)
class GatherRule:
    """A rule about one layer."""

    layer: str
    strategy: GatherStrategy = GatherStrategy.PREFER
    multiple: int = 1  # the pods in each place of the layer are a multiple of it


@dataclass(frozen=True, slots=True)
class GangTopology:
    """The topology spec of a gang. Without rules it is as close together as possible."""

    rules: tuple[GatherRule, ...] = ()

    @property
    def must_gather(self) -> frozenset[str]:
        """Layers in one place of which all pods must be."""
        return frozenset(one.layer for one in self.rules if one.strategy is GatherStrategy.MUST)

    @property
    def multiples(self) -> Mapping[str, int]:
        """Multiples by layer, where they matter."""
        return {one.layer: one.multiple for one in self.rules if one.multiple > 1}


def read_gang_topology(text: str) -> GangTopology:
    """Return the topology spec of an annotation's text.

    Raises:
        InvalidObject: it is no such JSON, or too large.
    """
    where = f"annotation {NETWORK_TOPOLOGY_SPEC}"
    wanted = f"JSON of at most {MAX_SPEC_BYTES} bytes"
    if len(text.encode(errors="replace")) > MAX_SPEC_BYTES:
        raise InvalidObject(where, wanted=wanted, found=f"{len(text)} characters")
    try:
        fields = Fields(json.loads(text), where)
    except (ValueError, RecursionError):
        raise InvalidObject(where, wanted=wanted, found=text) from None
    rules = tuple(_rule(one) for one in fields.objects("gatherStrategy"))
    if len(rules) > MAX_RULES:
        raise InvalidObject(where, wanted=f"at most {MAX_RULES} layers", found=len(rules))
    return GangTopology(rules)


def _rule(fields: Fields) -> GatherRule:
    layer, strategy = fields.required_text("layer"), fields.text("strategy")
    if len(layer) > MAX_LAYER_NAME:
        wanted = f"at most {MAX_LAYER_NAME} characters"
        raise InvalidObject(fields.path("layer"), wanted=wanted, found=layer)
    if strategy not in ("", *GatherStrategy):
        wanted = " or ".join(GatherStrategy)
        raise InvalidObject(fields.path("strategy"), wanted=wanted, found=strategy)
    multiple = fields.integer("podCountMultiple") or 1
    if not 0 < multiple <= _MAX_INT32:
        wanted = f"0 to {_MAX_INT32}"
        raise InvalidObject(fields.path("podCountMultiple"), wanted=wanted, found=multiple)
    return GatherRule(layer, GatherStrategy(strategy or GatherStrategy.PREFER), multiple)
