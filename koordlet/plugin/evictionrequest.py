"""Makes the request of an eviction from what a plugin asks for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from koord.util.errors import OptionError
from koordlet.executor.evictions.eviction import EvictionRequest
from koordlet.statesinformer.model import PodMeta

if TYPE_CHECKING:
    from koord.api.pods.pod import Pod
    from koordlet.plugin.base import ExtensionPlugin


def eviction_request(
    plugin: "ExtensionPlugin",
    pod: "PodMeta | Pod",
    reason: str,
    feature: str,
    *,
    grace_seconds: int | None = None,
    inputs: Mapping[str, float | str] | None = None,
    candidates: Iterable[str] = (),
) -> EvictionRequest:
    """Return the request; the arguments are those of ExtensionPlugin.evict.

    Raises:
        OptionError: reason, feature or grace_seconds cannot be used.
    """
    if not reason:
        raise OptionError("evict reason", reason, "say why, with the numbers that decided")
    if feature not in ("", plugin.name, *plugin.gates):
        known = ", ".join((plugin.name, *plugin.gates))
        raise OptionError("evict feature", feature, f"use one of {known}")
    if grace_seconds is not None and grace_seconds < 0:
        raise OptionError("evict grace_seconds", grace_seconds, "use 0 or more, or None")
    return EvictionRequest(
        plugin=plugin.name,
        feature=feature or plugin.name,
        pod=pod_of(pod),
        reason=reason,
        grace_seconds=grace_seconds,
        cgroup=pod.cgroup if isinstance(pod, PodMeta) else "",
        inputs=inputs or {},
        candidates=tuple(candidates),
    )


def pod_of(pod: "PodMeta | Pod") -> "Pod":
    """Return the Pod object, also of a PodMeta."""
    return pod.pod if isinstance(pod, PodMeta) else pod
