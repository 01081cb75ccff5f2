"""Names of pods' cgroups, as the kubelet and container runtimes make them. Pure: nothing is read.

Paths are relative to a cgroup hierarchy, without leading or trailing slash.

Source: Kubernetes, pkg/kubelet/cm; the runtimes' systemd cgroup managers.
"""

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from koord.api.nodeslo import HostApplication
from koord.api.qos import KubeQoS, QoSClass

UNKNOWN_RUNTIME = "unknown"

_SLICE = ".slice"
_SCOPE = ".scope"
_SCOPE_PREFIX = {
    "docker": "docker-",
    "containerd": "cri-containerd-",
    "pouch": "pouch-",
    "cri-o": "crio-",
}
_QOS_PART = {KubeQoS.BEST_EFFORT: "besteffort", KubeQoS.BURSTABLE: "burstable"}
_CRIO = _SCOPE_PREFIX["cri-o"]
_CRIO_MONITOR = "crio-conmon-"  # CRI-O's monitor process beside a container, not a container


class Driver(Enum):
    """The maker of the cgroups: systemd as slices and scopes, or the runtime itself."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class ContainerName(NamedTuple):
    """A container by its cgroup's name; cgroupfs names do not contain the runtime."""

    runtime: str
    id: str

    def __str__(self) -> str:
        """Return the id as Kubernetes writes it: "containerd://<id>"."""
        return f"{self.runtime}://{self.id}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names below one kubepods cgroup.

    root is its path: "kubepods.slice" or "kubepods" on an ordinary node, and for example
    "kubelet.slice/kubelet-kubepods.slice" where the kubelet runs with --cgroup-root=/kubelet
    (kind does).
    """

    driver: Driver
    root: str

    @classmethod
    def default(cls, driver: Driver) -> "Layout":
        """Return the layout of a kubelet without --cgroup-root."""
        return cls(driver, "kubepods.slice" if driver is Driver.SYSTEMD else "kubepods")

    def qos_dir(self, qos: KubeQoS) -> str:
        """Return the cgroup of a QoS class; guaranteed pods lie in the root itself."""
        part = _QOS_PART.get(qos)
        if part is None:
            return self.root
        if self.driver is Driver.SYSTEMD:
            return f"{self.root}/{self._stem}-{part}{_SLICE}"
        return f"{self.root}/{part}"

    def pod_dir(self, qos: KubeQoS, uid: str) -> str:
        """Return the cgroup of a pod."""
        if self.driver is Driver.CGROUPFS:
            return f"{self.qos_dir(qos)}/pod{uid}"
        return f"{self.qos_dir(qos)}/{self._pod_prefix(qos)}{uid.replace('-', '_')}{_SLICE}"

    def container_dir(self, pod_dir: str, container_id: str) -> str:
        """Return the cgroup of a container, given that of its pod."""
        return f"{pod_dir}/{self.container_name(container_id)}"

    def container_name(self, container_id: str) -> str:
        """Return the last part of a container's cgroup, from "containerd://<id>".

        Raises:
            ValueError: the runtime is missing or unknown.
        """
        runtime, separator, name = container_id.partition("://")
        if not separator or not name or runtime not in _SCOPE_PREFIX:
            known = ", ".join(_SCOPE_PREFIX)
            raise ValueError(f"wanted <runtime>://<id> ({known}), found {container_id!r}")
        if self.driver is Driver.CGROUPFS:
            return name
        return f"{_SCOPE_PREFIX[runtime]}{name}{_SCOPE}"

    def parse_pod_dir(self, name: str) -> str:
        """Return the pod id in the last part of a pod's cgroup; systemd has "_" for "-" there.

        Raises:
            ValueError: not the name of a pod.
        """
        if self.driver is Driver.CGROUPFS:
            if name.startswith("pod") and len(name) > len("pod"):
                return name.removeprefix("pod")
        elif name.endswith(_SLICE):
            for qos in (KubeQoS.BEST_EFFORT, KubeQoS.BURSTABLE, KubeQoS.GUARANTEED):
                uid = name.removesuffix(_SLICE).removeprefix(self._pod_prefix(qos))
                if uid and uid != name.removesuffix(_SLICE):
                    return uid
        raise ValueError(f"wanted the cgroup of a pod ({self.driver.value}), found {name!r}")

    def pod_uid(self, name: str) -> str:
        """Return the uid of the pod whose cgroup's last part is given, with dashes."""
        uid = self.parse_pod_dir(name)
        return uid.replace("_", "-") if self.driver is Driver.SYSTEMD else uid

    def parse_container_dir(self, name: str) -> ContainerName:
        """Return the container or sandbox that the last part of a cgroup names.

        Raises:
            ValueError: not the name of a container. With cgroupfs every name may be one.
        """
        if self.driver is Driver.CGROUPFS:
            return ContainerName(UNKNOWN_RUNTIME, name)
        if not name.startswith(_CRIO_MONITOR):
            for runtime, prefix in _SCOPE_PREFIX.items():
                if name.startswith(prefix) and (name.endswith(_SCOPE) or prefix == _CRIO):
                    return ContainerName(runtime, name.removeprefix(prefix).removesuffix(_SCOPE))
        raise ValueError(f"wanted the cgroup of a container (systemd), found {name!r}")

    def sandbox_id(self, children: Iterable[str], container_ids: Collection[str]) -> str:
        """Return the container id of a pod's sandbox (pause container); "" without containers.

        children are the names of the directories in the pod's cgroup, container_ids those of all
        its init and regular containers. The sandbox is the one child that is none of them.

        Raises:
            ValueError: no child or several are left, or an id is malformed.
        """
        if not container_ids:
            return ""
        known = {self.container_name(container_id) for container_id in container_ids}
        candidates = [name for name in children if name not in known and _may_be_sandbox(name)]
        if len(candidates) != 1:
            raise ValueError(f"wanted one sandbox beside the containers, found {candidates}")
        runtime = next(iter(container_ids)).partition("://")[0]
        return str(ContainerName(runtime, self.parse_container_dir(candidates[0]).id))

    @property
    def _stem(self) -> str:
        return posixpath.basename(self.root).removesuffix(_SLICE)

    def _pod_prefix(self, qos: KubeQoS) -> str:
        part = _QOS_PART.get(qos)
        return f"{self._stem}-{part}-pod" if part else f"{self._stem}-pod"


def qos_of(path: str) -> KubeQoS:
    """Return the QoS class in a pod's cgroup path."""
    for qos, part in _QOS_PART.items():
        if part in path:
            return qos
    return KubeQoS.GUARANTEED


_HOST_APP_BASE = {
    "Kubepods": KubeQoS.GUARANTEED,
    "KubepodsBurstable": KubeQoS.BURSTABLE,
    "KubepodsBesteffort": KubeQoS.BEST_EFFORT,
}
_LATENCY_SENSITIVE = (QoSClass.LSE, QoSClass.LSR, QoSClass.LS)


def host_app_group(layout: Layout, app: HostApplication) -> str:
    """Return the cgroup of a host application of the NodeSLO.

    Raises:
        ValueError: its name or path leads out of where it belongs.
    """
    if app.base is None:
        return default_host_app_dir(app.name, app.qos)
    return host_app_dir(layout, app.base, app.parent_dir, app.relative_path)


def default_host_app_dir(name: str, qos: str) -> str:
    """Return the cgroup of a host application that has no cgroupPath in the NodeSLO.

    Raises:
        ValueError: the name leads out of the hierarchy.
    """
    if qos in _LATENCY_SENSITIVE:
        return _clean(f"host-latency-sensitive/{name}")
    return _clean(f"host-best-effort/{name}" if qos == QoSClass.BE else name)


def host_app_dir(layout: Layout, base: str, parent_dir: str, relative_path: str) -> str:
    """Return the cgroup of a host application from its cgroupPath.

    base is "CgroupRoot", "Kubepods", "KubepodsBurstable" or "KubepodsBesteffort"; anything else
    means CgroupRoot.

    Raises:
        ValueError: the path leads out of its base.
    """
    qos = _HOST_APP_BASE.get(base)
    start = layout.qos_dir(qos) if qos else ""
    return _clean(f"{start}/{parent_dir}/{relative_path}")


def _clean(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"wanted a path without '..', found {path!r}")
    return "/".join(parts)


def _may_be_sandbox(name: str) -> bool:
    """CRI-O names its sandbox without ".scope", and has scopes that are no containers."""
    return not (name.startswith(_CRIO) and name.endswith(_SCOPE))
