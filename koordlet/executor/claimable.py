"""Checks what a plugin may claim: values that can be written, on levels that have them.

A defect is one sentence: what was wanted, what was found, and the nearest known name.
"""

from collections.abc import Collection, Iterator
from typing import Any

from koord.api.qos import KubeQoS, QoSClass
from koord.util.nearest import nearest
from koordlet.executor.claims import target
from koordlet.executor.claims.claim import ClaimScope
from koordlet.executor.claims.combine import combinable
from koordlet.executor.claims.target import Level
from koordlet.host.kernelfile import KernelFile
from koordlet.host.resource import Resource
from koordlet.host.resources import BY_NAME


def is_writable(resource: Resource[Any]) -> bool:
    """Whether any kernel lets the value be set."""
    return any(file.text is not None for file in resource.files.values())


def levels_of(resource: Resource[Any]) -> tuple[Level, ...]:
    """The levels on which a value has a place."""
    return target.levels_of(next(iter(resource.files.values())))


def defect_of(may: ClaimScope) -> str:
    """Return why nothing can ever be claimed so; "" for nothing."""
    return next(_defects(may), "")


def resource_defect(resource: object) -> str:
    """Return why something is no resource that can be claimed; "" for nothing."""
    if not isinstance(resource, Resource):
        return _not_in_the_table(str(resource), repr(resource))
    if type(resource) is KernelFile:
        return ""  # checked when it was made
    if BY_NAME.get(resource.name) is not resource:
        return _not_in_the_table(resource.name, f"one of its own called {resource.name!r}")
    if not is_writable(resource):
        return f"wanted a resource that can be written, found {resource.name}, which is read only"
    return ""


def _not_in_the_table(name: str, found: str) -> str:
    known = nearest(name, [name for name, row in BY_NAME.items() if is_writable(row)])
    return (
        f"wanted a resource of koordlet.plugin.resources, found {found}; the nearest is {known}, "
        "and a KernelFile declares a file that is none of them"
    )


def _defects(may: ClaimScope) -> Iterator[str]:
    if defect := resource_defect(may.resource):
        yield defect
        return
    name, levels, parts = may.resource.name, levels_of(may.resource), combinable(may.resource)
    if may.level not in levels:
        yield f"wanted level {_any_of(levels)} for {name}, found {may.level!r}"
    if may.part not in parts:
        yield f"wanted part {_any_of(sorted(parts))} of {name}, found {may.part!r}"
    classes = [each.value for each in (KubeQoS if may.level is Level.QOS else QoSClass)]
    if not isinstance(may.qos, frozenset):
        yield f"wanted a frozenset of QoS classes for {name}, found {may.qos!r}"
    for qos in sorted(set(may.qos) - set(classes)):
        wanted = f"wanted a QoS class of level {may.level} for {name}, found {qos!r}"
        yield f"{wanted}; the nearest is {nearest(str(qos), classes)!r}"


def _any_of(names: Collection[str]) -> str:
    return " or ".join(names)
