"""CPUNormalization and ResourceAmplification: annotations of nodes that others apply.

Source: Koordinator, noderesource/plugins cpunormalization and resourceamplification.
"""

import json
from collections.abc import Mapping
from functools import lru_cache

from koord.api.slocontroller import (
    AMPLIFICATION,
    CPU_NORMALIZATION,
    CPU_NORMALIZATION_ENABLED,
    HIGHEST_RATIO,
    LOWEST_RATIO,
    NORMALIZATION,
    RESOURCE_AMPLIFICATION,
)
from koord_manager.plugin import Calculation, Handle, NodeFacts, NodeResourcePlugin, reads

_LEAST_CHANGE = 0.01  # of a ratio; a smaller one is not written
_FLAGS = {"true": True, "false": False}


@lru_cache(maxsize=64)  # nodes share the few that there are
def _annotated(key: str, text: str | None) -> Calculation:
    return Calculation(annotations={key: text})


@reads(node_annotations={CPU_NORMALIZATION: 64}, node_labels=(CPU_NORMALIZATION_ENABLED,))
class CPUNormalization(NodeResourcePlugin):
    """Writes how much more a core of a node's CPU model does."""

    order = 10
    reads_reports = False

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments: the ratios are in slo-controller-config."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        try:
            ratio = normalization_ratio(node)
        except ValueError as err:  # the annotation stays as it is
            return Calculation(problems=(str(err),))
        return _annotated(CPU_NORMALIZATION, _text(node, ratio))


def normalization_ratio(node: NodeFacts) -> float:
    """Return the ratio of a node.

    Raises:
        ValueError: there is none for its CPU, or it is invalid.
    """
    strategy = node.config.ratios.normalization.load(NORMALIZATION, node.labels)
    enabled, label = strategy.enable, node.labels.get(CPU_NORMALIZATION_ENABLED)
    if label is not None:
        if label not in _FLAGS:
            raise ValueError(
                f"label {CPU_NORMALIZATION_ENABLED}: wanted true or false, found {label:.40}"
            )
        enabled = _FLAGS[label]
    if not enabled:
        return 1.0
    cpu = node.topology.cpu if node.topology else None
    if cpu is None:
        raise ValueError("the CPU model is not known: no NodeResourceTopology says it")
    model = strategy.models.get(cpu.model)
    ratio = model.ratio(hyper_threading=cpu.hyper_threading, turbo=cpu.turbo) if model else None
    ratio = strategy.default_ratio if ratio is None else ratio
    if ratio is None:
        raise ValueError(f"no ratio for the CPU model {cpu.model!r:.120}")
    if not LOWEST_RATIO <= ratio <= HIGHEST_RATIO:
        raise ValueError(f"wanted a ratio of {LOWEST_RATIO} to {HIGHEST_RATIO}, found {ratio:g}")
    return ratio


def _text(node: NodeFacts, ratio: float) -> str:
    """The annotation; what the node has, when that is nearly the same."""
    present = node.annotation(CPU_NORMALIZATION)
    try:
        if present is not None and abs(float(present) - ratio) <= _LEAST_CHANGE + 1e-9:
            return present
    except ValueError:
        pass  # it is no number: written anew
    return f"{ratio:.2f}"


@reads(node_annotations={CPU_NORMALIZATION: 64, RESOURCE_AMPLIFICATION: 1024})
class ResourceAmplification(NodeResourcePlugin):
    """Writes by how much the allocatable of a node is to be amplified."""

    order = 20
    reads_reports = False

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments: the ratios are in slo-controller-config."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        text = earlier.annotations.get(CPU_NORMALIZATION) or node.annotation(CPU_NORMALIZATION)
        strategy = node.config.ratios.amplification.load(AMPLIFICATION, node.labels)
        try:
            ratios = amplification_ratios(strategy.ratios if strategy.enable else {}, text)
        except ValueError as err:
            return Calculation(annotations={RESOURCE_AMPLIFICATION: None}, problems=(str(err),))
        if not ratios:
            return _annotated(RESOURCE_AMPLIFICATION, None)
        parts = (f"{json.dumps(name)}:{ratio:.2f}" for name, ratio in sorted(ratios.items()))
        return _annotated(RESOURCE_AMPLIFICATION, f"{{{','.join(parts)}}}")


def amplification_ratios(
    strategy: Mapping[str, float], normalization: str | None
) -> dict[str, float]:
    """Return the ratios by resource; that of the CPU is multiplied with its normalization.

    Raises:
        ValueError: one is below 1.
    """
    try:
        factor = float(normalization or "1")
    except ValueError:
        factor = 1.0
    cpu = strategy.get("cpu", 0.0)
    ratio = (cpu if cpu > 0 else 1.0) * (factor if factor > 0 else 1.0)
    found = {name: each for name, each in strategy.items() if name != "cpu"}
    if ratio != 1:
        found["cpu"] = ratio
    for name, each in found.items():
        if each < 1:
            raise ValueError(f"ratio of {name}: wanted 1 or more, found {each:g}")
    return found
