"""What the tests ask of the cluster: by kubectl, as its users do; and of the real node's kernel."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from koord_manager import LEASE
from tests.support.programs import KUBERNETES
from tests.support.real_cluster.access import NODE
from tests.support.real_runtime.containerd_node import IMAGE

SYSTEM = "koordlet-system"
NAMESPACES = {"koord-manager": "koordinator-system"}  # of daemons that are not in SYSTEM
LEASES = {"koord-manager": LEASE}  # of daemons whose Lease has another name
SHOP = "shop"  # the namespace of the tests' own pods
TIMEOUT = 150.0  # seconds for what takes some
BEST_EFFORT = "kubepods/besteffort"
Object = dict[str, Any]
T = TypeVar("T")
_CGROUPS = Path("/sys/fs/cgroup")


class Cluster:
    """The cluster of make cluster-test. directory: where its files are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def kubectl(self, *arguments: str | Path, given: str = "", check: bool = True) -> str:
        """What a command prints, or says when it fails and need not succeed."""
        done = subprocess.run(
            [KUBERNETES.called("kubectl"), *arguments],
            input=given, capture_output=True, text=True, timeout=TIMEOUT,
        )  # fmt: skip
        if done.returncode and not check:
            return done.stderr
        assert done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: Object) -> None:
        """Have these objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-f", "-", given=json.dumps(listed))

    def items(self, kind: str, *arguments: str) -> list[Object]:
        """The objects of a kind; arguments such as -n and -l choose among them."""
        found = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))
        listed: list[Object] = found["items"]
        return listed

    def find(self, kind: str, name: str, *arguments: str) -> Object:
        """One object; empty when there is none."""
        found = self.kubectl("get", kind, name, *arguments, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found else {}

    def pods(self, name: str, namespace: str = SHOP) -> list[Object]:
        """The pods of a daemon, or of a Deployment of the tests, that are not about to end."""
        listed = self.items("pods", "-n", namespace, "-l", f"app.kubernetes.io/name={name}")
        return [each for each in listed if "deletionTimestamp" not in each["metadata"]]

    def report(self, node: str = NODE) -> Object:
        """The status of its NodeMetric; empty when there is none."""
        return self.find("nodemetric", node).get("status") or {}

    def leader(self, daemon: str) -> str:
        """Return the pod of the replica that holds the daemon's Lease; empty when there is none."""
        name, namespace = LEASES.get(daemon, daemon), NAMESPACES.get(daemon, SYSTEM)
        spec = self.find("lease", name, "-n", namespace).get("spec") or {}
        return str(spec.get("holderIdentity") or "").partition("_")[0]

    def explanation(self, daemon: str, about: str) -> str:
        """Return what the replica that works says of a node or a pod, as JSON."""
        command = ("exec", self.leader(daemon), "--", f"/{daemon}", "explain", about)
        return self.kubectl("-n", NAMESPACES.get(daemon, SYSTEM), *command, "--output=json")

    def until(self, found: Callable[[], T], what: str, seconds: float = TIMEOUT) -> T:
        """Return what is found as soon as it is true; fail when it takes too long."""
        end = time.monotonic() + seconds
        while not (value := found()):
            assert time.monotonic() < end, f"after {seconds:g} s still not so: {what}"
            time.sleep(0.2)
        return value

    def rolled_out(self, *workloads: str, namespace: str = SYSTEM) -> None:
        """Wait until all pods of these are as they shall be."""
        for each in workloads:
            wait = f"--timeout={TIMEOUT:g}s"
            self.kubectl("-n", namespace, "rollout", "status", each, wait)


def kernel(controller: str, group: str, file: str) -> str:
    """A value of the real node's cgroups."""
    return (_CGROUPS / controller / group / file).read_text().strip()


def quota() -> int:
    """Of all best-effort pods on the real node, in microseconds per period; -1: no limit."""
    return int(kernel("cpu", BEST_EFFORT, "cpu.cfs_quota_us"))


def pod(name: str, app: str, *, busy: int = 0, cpu: str = "", **spec: Any) -> Object:
    """A pod of one container that waits, or keeps so many CPUs busy; spec is of the pod.

    cpu: what it requests; a pod without is a best-effort one, which the agent squeezes.
    """
    container: Object = {"name": "main", "image": IMAGE}
    if busy:
        container["args"] = [str(busy)]
    if cpu:
        container["resources"] = {"requests": {"cpu": cpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": SHOP,
            "labels": {"app.kubernetes.io/name": app},
            "annotations": {},
        },
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "schedulerName": "koord-scheduler",
            **spec,
        },
    }


def best_effort(name: str, **annotations: str) -> Object:
    """A best-effort pod on the real node, that would take every CPU."""
    made = pod(name, name, busy=os.cpu_count() or 1, nodeName=NODE)
    made["metadata"]["labels"]["koordinator.sh/qosClass"] = "BE"
    made["metadata"]["annotations"] = annotations
    return made


def replica_set(app: str, replicas: int, made: Object | None = None) -> Object:
    """So many pods like this one, by default one that waits. Those that are there already count."""
    made = made or pod("", app)
    template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app, "namespace": SHOP},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "template": template,
        },
    }


def deployment(app: str, replicas: int, made: Object) -> Object:
    """Return a Deployment of so many pods like this one."""
    template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app, "namespace": SHOP},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": app}},
            "template": template,
        },
    }


def budget(app: str, **spec: int) -> Object:
    """A PodDisruptionBudget of these pods: minAvailable or maxUnavailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": SHOP},
        "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": app}}, **spec},
    }


def names(objects: Iterable[Object]) -> list[str]:
    """The names of objects."""
    return [each["metadata"]["name"] for each in objects]
