"""Access of a pod to the node itself: an agent's spec grants it, a tenant's should not."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from koord.api.decoding.fields import Fields

_CGROUPS = PurePosixPath("/sys/fs/cgroup")


def reaches_host(spec: Fields) -> bool:
    """Return whether a pod sees the host's pids, is privileged, or mounts the host's cgroups.

    Kubernetes' Pod Security Standards allow none of that below "privileged".

    Raises:
        InvalidObject: a field has the wrong type.
    """
    return spec.boolean("hostPID") or _is_privileged(spec) or any(map(_shows_cgroups, _paths(spec)))


def _is_privileged(spec: Fields) -> bool:
    return any(
        container.nested("securityContext").boolean("privileged")
        for kind in ("containers", "initContainers")
        for container in spec.objects(kind)
    )


def _paths(spec: Fields) -> Iterator[str]:
    for volume in spec.objects("volumes"):
        if volume.get("hostPath") is not None:
            yield volume.nested("hostPath").text("path")


def _shows_cgroups(path: str) -> bool:
    """Whether a directory of the host is part of the cgroup file system, or holds it."""
    plain = PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))
    return ".." in plain.parts or plain.is_relative_to(_CGROUPS) or _CGROUPS.is_relative_to(plain)
