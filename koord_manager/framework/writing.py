"""When a node is written, and what: one merge patch of its status. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.quantity import Quantity
from koord.api.slocontroller import ColocationStrategy
from koord.cluster.facts import ClusterNode
from koord.kube.transport import Object
from koord_manager.framework.calculator import ORIGIN, NodeResult, amount_text
from koord_manager.framework.facts import NodeTopology, Zone

Operation = dict[str, object]


@dataclass(frozen=True, slots=True)
class NodePatch:
    """A merge patch of nodes/NAME/status, and why it is sent."""

    body: Object
    reason: str


def node_patch(
    node: ClusterNode,
    result: NodeResult,
    strategy: ColocationStrategy,
    *,
    written: float | None,
    now: float,
) -> NodePatch | None:
    """Return the patch that brings a node in line; None: it is, or nearly.

    written: when it was written last, None: not by this process. What differs a little is written
    then, and when updateTimeThresholdSeconds have gone by; at once what differs by more than the
    share resourceDiffThreshold, or is not on both sides.

    Source: Koordinator, noderesource isNodeResourceSyncNeeded; there equal values are written, too.
    """
    present = dict(node.allocatable)
    wanted = {name: one.amount for name, one in result.resources.items()}
    differing = [name for name, amount in wanted.items() if present.get(name) != amount]
    far = [
        name
        for name in differing
        if _differs(present.get(name), wanted[name], strategy.resource_diff_threshold)
    ]
    annotations = dict(node.annotations)
    metadata = {
        key: text for key, text in result.annotations.items() if annotations.get(key) != text
    }
    origin = metadata.pop(ORIGIN, None)
    labels = {key: text for key, text in result.labels.items() if node.labels.get(key) != text}
    is_due = written is None or now - written > strategy.update_time_threshold_seconds
    reasons = [f"{name}: {_text(name, present.get(name))} to {_text(name, wanted[name])}"
               for name in far]  # fmt: skip
    reasons += [f"annotation {key}" for key in metadata] + [f"label {key}" for key in labels]
    if differing and not far and is_due:
        reasons.append("not written yet" if written is None else "values are due")
    if not reasons:
        return None
    patch: Object = {}
    meta: Object = {}
    if differing and (far or is_due):
        amounts = {name: _text_or_none(name, wanted[name]) for name in wanted}
        amounts = {
            name: text for name, text in amounts.items() if text is not None or name in present
        }
        patch["status"] = {"capacity": amounts, "allocatable": amounts}
        if origin is not None:
            metadata[ORIGIN] = origin
    if metadata:
        meta["annotations"] = metadata
    if labels:
        meta["labels"] = labels
    if node.uid:
        meta["uid"] = node.uid  # another node of this name is not patched
    return NodePatch({"metadata": meta, **patch}, "; ".join(reasons))


def _differs(old: int | None, new: int | None, threshold: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > old * threshold


def _text_or_none(name: str, amount: int | None) -> str | None:
    return None if amount is None else amount_text(name, amount)


def _text(name: str, amount: int | None) -> str:
    return "none" if amount is None else amount_text(name, amount)


def zone_operations(
    topology: NodeTopology,
    wanted: Mapping[str, Mapping[str, Quantity | None]],
    strategy: ColocationStrategy,
) -> list[Operation]:
    """Return the JSON patch of a NodeResourceTopology; empty: all is in line, or nearly.

    It applies to exactly this version of the object. Resources of a zone stay sorted by name where
    they are.
    """
    found: list[Operation] = []
    for index, zone in enumerate(topology.zones):
        path = f"/zones/{index}/resources"
        found += _of_zone(path, zone, wanted.get(zone.name, {}), strategy.resource_diff_threshold)
    if not found:
        return []
    return [
        {"op": "test", "path": "/metadata/uid", "value": topology.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": topology.version},
        *found,
    ]


def _of_zone(
    path: str, zone: Zone, wanted: Mapping[str, Quantity | None], threshold: float
) -> list[Operation]:
    names = list(zone.names)
    texts = dict(zip(zone.names, zone.texts, strict=True))
    operations: list[Operation] = []
    for name in sorted(wanted):
        amount, is_there = wanted[name], name in names
        if amount is None:
            if is_there:
                at = names.index(name)
                operations.append({"op": "remove", "path": f"{path}/{at}"})
                names.pop(at)
            continue
        text = str(amount)
        entry = {"name": name, "capacity": text, "allocatable": text, "available": text}
        if not is_there:
            at = next((i for i, other in enumerate(names) if other > name), len(names))
            operations.append({"op": "add", "path": f"{path}/{at}", "value": entry})
            names.insert(at, name)
        elif any(_far(Quantity.parse(old), amount, threshold) for old in texts[name]):
            at = names.index(name)
            for key in ("capacity", "allocatable", "available"):
                operations.append({"op": "add", "path": f"{path}/{at}/{key}", "value": text})
    return operations


def _far(old: Quantity, new: Quantity, threshold: float) -> bool:
    return abs(new.nano - old.nano) > old.nano * threshold
