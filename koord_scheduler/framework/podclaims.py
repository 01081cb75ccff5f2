"""Claims: what plugins answer for in pods, so that a pod that asks for more is refused in words.

@claims_pods_with("pod-group.scheduling.sigs.k8s.io")
class Gangs(PermitPlugin, ...): ...
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from koord.component.plugins.registry import PluginError

MAX_KEYS = 256  # that one plugin claims
MAX_KEY_LENGTH = 317  # characters: a prefix of 253, a slash, a name of 63

_DECLARED = "__plugin_claims__"

F = TypeVar("F", bound=Callable[..., object])


def claims_pods_with(*keys: str) -> Callable[[F], F]:
    """Declare that a plugin does what pods ask for by these annotations, labels or resources.

    While no plugin of its profile claims what a pod asks for, MissingPlugins refuses the pod. It
    knows the keys of Koordinator's gangs, quotas, reservations, NUMA nodes and devices. A derived
    class also claims what its bases do.

    Raises:
        PluginError: a key cannot be one.
    """
    if len(keys) > MAX_KEYS:
        raise PluginError(f"claims_pods_with: wanted at most {MAX_KEYS} keys, found {len(keys)}")
    for key in keys:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            wanted = "wanted keys of annotations or labels, or names of resources"
            raise PluginError(f"claims_pods_with: {wanted}, found {key!r:.80}")

    def declare(factory: F) -> F:
        setattr(factory, _DECLARED, claims_of(factory) | frozenset(keys))
        return factory

    return declare


def claims_of(factory: object) -> frozenset[str]:
    """Return what a factory, or the class of a plugin, declares to claim."""
    found: object = getattr(factory, _DECLARED, None)
    return found if isinstance(found, frozenset) else frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class PodClaims:
    """Claims of the plugins of one profile, and of those that it lacks."""

    profile: str  # its scheduler name
    enabled: frozenset[str] = frozenset()
    """What plugins of the profile claim."""
    registered: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Plugins of this process by what they claim, whether the profile enables them or not."""

    def remedy(self, key: str, example: str) -> str:
        """Return the hint for a key without a claim. example: a plugin that has one."""
        names = sorted(self.registered.get(key, ()))
        if names:
            return f"enable {' or '.join(names)} in profile {self.profile}"
        return (
            f"install a plugin that claims {key}, such as Koordinator's {example}, and enable it "
            f"in profile {self.profile}, or have another scheduler place the pod"
        )


def pod_claims(
    profile: str, enabled: Collection[str], factories: Iterable[tuple[str, object]]
) -> PodClaims:
    """Return the claims of a profile that enables plugins by name. factories: all, by name."""
    registered: dict[str, list[str]] = {}
    claimed: set[str] = set()
    for name, factory in factories:
        keys = claims_of(factory)
        for key in keys:
            registered.setdefault(key, []).append(name)
        if name in enabled:
            claimed |= keys
    return PodClaims(profile=profile, enabled=frozenset(claimed), registered=registered)
