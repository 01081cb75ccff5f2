"""What the API server and the real node hold: compared before an installation and after its end."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from koordlet.host.resource import File, Root
from koordlet.host.resources import RESOURCES
from tests.support.programs import REPOSITORY
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import BEST_EFFORT, TIMEOUT, Cluster

Traces = Mapping[str, str]  # what is there, and its value
RUN_DIRECTORY = "/run/koordlet"  # documented to stay on a node until it boots again
_CGROUPS = Path("/sys/fs/cgroup")
_DIRECTORIES = ("/etc", "/opt", "/run", "/usr/local", "/var/lib", "/var/log")
# Kinds that others write at any time, or that are not kept.
_PASSING = ("events", "events.events.k8s.io", "componentstatuses")
_NODE_LEASES = " kube-node-lease/"  # a kubelet makes its own soon after its node
_LIST = """{range .items[*]}{.apiVersion}/{.kind} {.metadata.namespace}/{.metadata.name}
{end}"""


def traces(cluster: Cluster) -> Traces:
    """Objects of all kinds, what nodes offer and are labelled with, kernel values, directories."""
    return {**objects(cluster), **node_fields(cluster), **kernel_values(), **directories()}


def objects(cluster: Cluster) -> Traces:
    """All objects of the API server but those that the kubelets make when they please."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(kind for kind in kinds if kind not in _PASSING)
    listed = cluster.kubectl("get", wanted, "-A", "-o", f"jsonpath={_LIST}")
    kept = (line for line in listed.splitlines() if _NODE_LEASES not in line)
    return dict.fromkeys(kept, "is there")


def node_fields(cluster: Cluster) -> Traces:
    """What the agents' node has besides its name, and how much it offers."""
    node = cluster.find("node", NODE)
    metadata, status = node["metadata"], node["status"]
    parts = {
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
        "finalizers": metadata.get("finalizers"),
        "taints": node["spec"].get("taints"),
        "allocatable": status["allocatable"],
    }
    return {f"{NODE}: {name}": json.dumps(part, sort_keys=True) for name, part in parts.items()}


def kernel_values() -> Traces:
    """All values of pods' cgroups that an agent could write."""
    return {
        str(path): path.read_text().strip()
        for file in _WRITABLE
        for path in (_CGROUPS / file.controller / "kubepods").rglob(file.name)
    }


def changed_by_an_agent(before: Traces) -> list[str]:
    """The values of pods that were there before, and of best-effort pods together, that changed.

    Those of other classes of pods change by the kubelet, with each pod.
    """
    return [
        name
        for name, value in kernel_values().items()
        if before.get(name, value) != value and ("/pod" in name or BEST_EFFORT in name)
    ]


def _writable() -> list[File[object]]:
    files = [row.files[1] for row in RESOURCES if 1 in row.files]
    return [file for file in files if file.root is Root.CGROUP and file.text is not None]


_WRITABLE = _writable()


def directories() -> Traces:
    """What is directly below the directories of the node in which programs keep files."""
    listed = [entry.path for each in _DIRECTORIES for entry in os.scandir(each)]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return dict.fromkeys([*listed, *mounts], "is there")


def differences(before: Traces, after: Traces) -> list[str]:
    """What has come, gone or changed."""
    return sorted(
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    )


def to_restore() -> list[str]:
    """What `koordletctl restore` on the node would still find changed, and what becomes of it.

    A record of a container that a killed runtime never made is none: there is no value.
    """
    program = REPOSITORY / ".venv" / "bin" / "koordletctl"
    # Named, as this root is not the whole machine's but all that the node has.
    where = (f"--run-dir={RUN_DIRECTORY}", f"--cgroup-root-dir={_CGROUPS}")
    done = subprocess.run(
        [program, "restore", "--output=json", *where], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["values"]
    return [
        f"{each['value']}: {each['outcome']}, {each['message']}"
        for each in found
        if each["outcome"] != "left" or _is_there(each["value"].partition(" of ")[2])
    ]


def _is_there(group: str) -> bool:
    return any((hierarchy / group).exists() for hierarchy in _CGROUPS.iterdir())


def left_behind(
    cluster: Cluster, before: Traces, may_stay: Callable[[str], bool], seconds: float = TIMEOUT
) -> list[str]:
    """What differs but for what may stay; after a while, if there is something at first.

    The kernel and the API server's controllers need a moment after the last pod.
    """
    end = time.monotonic() + seconds
    while True:
        found = [each for each in differences(before, traces(cluster)) if not may_stay(each)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(1)
