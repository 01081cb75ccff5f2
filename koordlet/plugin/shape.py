"""Checks whether an object has the shape of a plugin, when it is registered."""

from collections.abc import Iterator

from koord.component.features import FeatureSpec
from koord.component.plugins.shape import defects
from koord.util.snakecase import snake_case
from koordlet.executor import claimable
from koordlet.executor.claims.claim import ClaimScope
from koordlet.host.kernelfile import KernelFile
from koordlet.plugin import publisher
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.limits import Limits

_METHODS = ("init_flags", "setup", "run", "stop")
MOST_OWN_FILES = 16  # that a plugin declares
_GATES = ("gates", "modes", "needs")


def defect_of(feature: object, spec: object, plugin: object) -> str:
    """Return what is wrong with a plugin: wanted, found and what to do; "" for nothing."""
    if not isinstance(plugin, ExtensionPlugin):
        return (
            f"wanted an instance of ExtensionPlugin, found {plugin!r}; "
            "derive its class from koordlet.plugin.ExtensionPlugin"
        )
    return next(_defects(feature, spec, plugin), "")


def _defects(feature: object, spec: object, plugin: ExtensionPlugin) -> Iterator[str]:
    if not isinstance(feature, str) or not feature or set(feature) & set("=, "):
        yield f"wanted a name without blanks, commas and =, found {feature!r}"
    for wanted in (spec, plugin.spec):
        if wanted is not None and not isinstance(wanted, FeatureSpec):
            yield f"wanted a FeatureSpec or None as spec, found {wanted!r}"
    yield from defects(plugin, ExtensionPlugin, _METHODS)
    for name in _GATES:
        value = getattr(plugin, name)
        if not isinstance(value, tuple) or not all(isinstance(gate, str) for gate in value):
            hint = f"write {name} = ({value!r},)" if isinstance(value, str) else "write a tuple"
            yield f"wanted a tuple of gate names in {name}, found {value!r}; {hint}"
    yield from _limits_defects(plugin.limits)
    yield from _claim_defects(plugin.may_claim)
    if defect := publisher.defect_of(plugin.publishes, snake_case(str(feature))):
        yield defect


def _limits_defects(limits: object) -> Iterator[str]:
    if not isinstance(limits, Limits):
        yield f"wanted Limits in limits, found {limits!r}; write limits = Limits(round=60.0)"


def _claim_defects(may_claim: object) -> Iterator[str]:
    """Yield what is wrong with may_claim; each resource in it is a series of /metrics."""
    if not isinstance(may_claim, tuple):
        hint = "write may_claim = (ClaimScope(…),)"
        yield f"wanted a tuple in may_claim, found {may_claim!r}; {hint}"
        return
    own = {may.resource for may in may_claim if isinstance(getattr(may, "resource", 0), KernelFile)}
    if len(own) > MOST_OWN_FILES:
        yield f"wanted at most {MOST_OWN_FILES} kernel files of its own, found {len(own)}"
    for may in may_claim:
        if not isinstance(may, ClaimScope):
            yield f"wanted ClaimScope(…) in may_claim, found {may!r}"
        elif defect := claimable.defect_of(may):
            yield f"may_claim: {defect}"
