"""RuntimeDefault, the seccomp profile of a pod, in the words that runc reads.

The profile is the one CRI-O and Podman use, from Debian (golang-github-containers-common). That of
containerd and Docker has the same origin; it lets all through that strace sees of the daemon.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROFILE = Path("/usr/share/containers/seccomp.json")

_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def runtime_default(capabilities: list[str]) -> dict[str, Any]:
    """Return the profile of a container with these capabilities, on this machine."""
    profile = json.loads(PROFILE.read_text())
    machine = _GO_NAMES.get(platform.machine(), platform.machine())
    traits = {"caps": capabilities, "arches": [machine]}
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [
            name
            for row in profile["archMap"]
            if row["architecture"] == f"SCMP_ARCH_{platform.machine().upper()}"
            for name in (row["architecture"], *(row["subArchitectures"] or ()))
        ],
        "syscalls": [_rule(row) for row in profile["syscalls"] if _applies(row, traits)],
    }


def _applies(row: Mapping[str, Any], traits: Mapping[str, list[str]]) -> bool:
    def holds(condition: Mapping[str, list[str]], trait: str) -> bool:
        return any(name in traits[trait] for name in condition[trait])

    wanted, unwanted = row["includes"], row["excludes"]
    return all(holds(wanted, trait) for trait in traits if trait in wanted) and not any(
        holds(unwanted, trait) for trait in traits if trait in unwanted
    )


def _rule(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: row[name] for name in ("names", "action", "errnoRet") if name in row}
    return kept | {"args": row["args"] or []}
