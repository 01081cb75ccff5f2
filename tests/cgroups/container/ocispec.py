"""From a pod of a manifest to runc's configuration, as containerd does.

Source: containerd, internal/cri (container_create_linux.go) and oci (spec.go).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from koord.api.quantity import Quantity

from .seccomp import runtime_default

Json = dict[str, Any]

_READ_ONLY = ["bind", "ro", "nosuid", "nodev"]
_PYTHON = ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix)
_MASKED = (
    "/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
_READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def oci_spec(
    pod: Json,
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    host: Path,
    files: Mapping[str, Path],
    cgroup: str,
    image: Path | None = None,
    seccomp: Json | None = None,
) -> Json:
    """Return the configuration of the pod's only container.

    Host paths are this machine's own below /sys, and below the directory host otherwise, where they
    are made. files: by where they are in the container, all read-only. image: its root directory;
    None: this machine's Python. seccomp: a profile other than Debian's.
    """
    [container] = pod["containers"]
    security = {**pod["securityContext"], **container["securityContext"]}
    held = [f"CAP_{name}" for name in security["capabilities"].get("add", ())]
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["seccompProfile"]["type"] == "RuntimeDefault"
    python = {} if image else {path: Path(path) for path in _PYTHON}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": security["runAsUser"], "gid": security.get("runAsGroup", 0)},
            "args": [*command],
            "env": [f"{name}={value}" for name, value in environ.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
        },
        "root": {"path": str(image or "rootfs"), "readonly": security["readOnlyRootFilesystem"]},
        "mounts": [*_system(), *_files({**python, **files}), *_volumes(pod, container, host)],
        "linux": {
            "namespaces": [{"type": name} for name in _namespaces(pod)],
            "maskedPaths": [*_MASKED],
            "readonlyPaths": [*_READ_ONLY_PATHS],
            "seccomp": seccomp or runtime_default(held),
            "resources": _resources(container["resources"]["limits"]),
            "cgroupsPath": cgroup,
        },
    }


def _namespaces(pod: Json) -> list[str]:
    shared = {"pid": pod.get("hostPID", False), "network": pod.get("hostNetwork", False)}
    # containerd gives a cgroup namespace to containers on cgroup v2 only.
    shared["cgroup"] = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return [
        name
        for name in ("mount", "ipc", "uts", "pid", "network", "cgroup")
        if not shared.get(name, False)
    ]


def _system() -> list[Json]:
    restricted = ["nosuid", "noexec", "nodev"]
    rows = (
        ("/proc", "proc", restricted),
        ("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        ("/dev/shm", "tmpfs", [*restricted, "mode=1777", "size=65536k"]),
        ("/dev/mqueue", "mqueue", restricted),
        ("/sys", "sysfs", [*restricted, "ro"]),
        ("/sys/fs/cgroup", "cgroup", [*restricted, "relatime", "ro"]),
    )
    return [
        {"destination": path, "type": kind, "source": kind, "options": options}
        for path, kind, options in rows
    ]


def _files(files: Mapping[str, Path]) -> list[Json]:
    return [_bind(source, path, _READ_ONLY) for path, source in files.items()]


def _volumes(pod: Json, container: Json, host: Path) -> list[Json]:
    paths = {
        each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each
    }
    mounts = []
    for each in container["volumeMounts"]:
        if each["name"] not in paths:
            continue  # a ConfigMap, which is in files
        source = Path(paths[each["name"]])
        if not source.is_relative_to("/sys"):
            source = host / source.relative_to("/")
            source.mkdir(parents=True, exist_ok=True)
        mode = "rro" if each.get("recursiveReadOnly") else "ro" if each.get("readOnly") else "rw"
        mounts.append(_bind(source, each["mountPath"], ["rbind", "rprivate", mode]))
    return mounts


def _bind(source: Path, target: str, options: list[str]) -> Json:
    return {
        "destination": target,
        "type": "bind",
        "source": os.path.realpath(source),
        "options": options,
    }


def _resources(limits: Mapping[str, str]) -> Json:
    """Not the limit of CPU: an emulated machine is many times slower than what it is made for."""
    return {"memory": {"limit": Quantity.parse(limits["memory"]).integer}}
