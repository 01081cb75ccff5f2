"""Invariants of a cluster whatever is killed in it, checked from outside of the daemons.

Pods and nodes are listed again and again, each list as the API server has it at one moment; who
was evicted and bound is in the API server's audit log.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from koord.api.quantity import Quantity
from koord.api.reservation import ALLOCATED
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.audit_log import NAMESPACES
from tests.support.real_cluster.background import Background
from tests.support.real_cluster.client import SYSTEM, Object
from tests.support.real_cluster.colocation import (
    BATCH_CPU,
    BATCH_MEMORY,
    beyond_capacity,
    not_mutated,
)

KILLED = (137, "Error")  # the exit code and reason of a container after kill -9
UNKNOWN = "Unknown"  # the reason of an end that containerd has not seen
LOST_LEASE = ": lost lease "  # in the last words of a replica
_RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
_PERIOD = 1.0  # seconds between two looks


class Watch(Background):
    """Looks at pods and nodes until it is stopped; wrong: the violations it found."""

    def __init__(self, api: Api) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.looks = 0
        self.bound = 0
        self._api = api
        self._nodes: dict[str, str] = {}  # of pods that are bound, by UID
        self._ends: set[tuple[str, int]] = set()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD):
            before = self._api.items(_RESERVATIONS) or ()
            pods, nodes = self._api.items("/api/v1/pods"), self._api.items("/api/v1/nodes")
            if pods is None or nodes is None:
                continue
            lasting = unchanged(before, (self._api.items(_RESERVATIONS) or ()) if before else ())
            self.looks += 1
            for found in (
                *above_allocatable(pods, nodes, lasting),
                *given_twice(pods, lasting),
                *beyond_capacity(nodes),
                *not_mutated(pods),
                *self._moved(pods),
                *died(pods, self._ends),
            ):
                if found not in self.wrong:
                    print(f"WRONG: {found}", flush=True)
                    self.wrong.append(found)

    def _moved(self, pods: Iterable[Object]) -> Iterator[str]:
        """Yield the pods that are on another node than before."""
        for each in pods:
            uid, node = each["metadata"]["uid"], each["spec"].get("nodeName")
            if node and self._nodes.setdefault(uid, node) != node:
                yield f"pod {_name(each)} went from {self._nodes[uid]} to {node}"
        self.bound = len(self._nodes)


def unchanged(before: Iterable[Object], after: Iterable[Object]) -> list[Object]:
    """Return the available Reservations that were the same in two lists, and so between them."""
    known = {_version(each) for each in before}
    return [each for each in after if _version(each) in known and _is_available(each)]


def above_allocatable(
    pods: Iterable[Object], nodes: Iterable[Object], reservations: Iterable[Object] = ()
) -> Iterator[str]:
    """Yield the nodes whose pods request more than is allocatable beside their reservations.

    Not of batch resources: they fall when prod pods are busy, and who holds some keeps it.

    reservations: available ones, of which their consumers have taken a part.
    """
    requested: dict[str, Counter[str]] = {}
    consumers = _consumers(pods)
    for each in pods:
        node = _place(each)
        if node:
            requested.setdefault(node, Counter()).update(_requests(each))
    for one in reservations:
        held = requested.setdefault(one["status"]["nodeName"], Counter())
        for resource, amount in _left(one, consumers).items():
            held[resource] += max(0, amount) if resource != "pods" else 0
    for row in nodes:
        name, room = row["metadata"]["name"], row["status"].get("allocatable", {})
        for resource, amount in requested.get(name, {}).items():
            counts = resource in room and resource not in (BATCH_CPU, BATCH_MEMORY)
            most = Quantity.parse(room[resource]).milli if counts else amount
            if amount > most:
                yield f"pods on {name} request {amount} of {most} thousandths of {resource}"


def given_twice(pods: Iterable[Object], reservations: Iterable[Object]) -> Iterator[str]:
    """Yield the available reservations that have given more than they may, or to pods elsewhere."""
    consumers = _consumers(pods)
    for each in reservations:
        name, spec = each["metadata"]["name"], each["spec"]
        mine = consumers.get(each["metadata"]["uid"], ())
        if spec.get("allocateOnce", True) and len(mine) > 1:
            yield f"reservation {name} was given to {' and '.join(map(_name, mine))}"
        for pod in mine:
            if _place(pod) != each["status"]["nodeName"]:
                yield f"reservation {name} was given to {_name(pod)} on another node"
        if spec.get("allocatePolicy") == "Restricted":
            for resource, amount in _left(each, consumers).items():
                if amount < 0:
                    yield f"reservation {name} has given {-amount} thousandths of {resource} more"


def _consumers(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Return the pods that hold a reservation, by its UID."""
    found: dict[str, list[Object]] = {}
    for each in pods:
        said = (each["metadata"].get("annotations") or {}).get(ALLOCATED)
        if said and _place(each):
            found.setdefault(json.loads(said)["uid"], []).append(each)
    return found


def _left(reservation: Object, consumers: Mapping[str, Iterable[Object]]) -> Counter[str]:
    """Return what consumers have left of a reservation; below 0: they have more of it."""
    left = Counter(
        {
            resource: Quantity.parse(amount).milli
            for resource, amount in (reservation["status"].get("allocatable") or {}).items()
        }
    )
    for pod in consumers.get(reservation["metadata"]["uid"], ()):
        left.subtract({key: value for key, value in _requests(pod).items() if key in left})
    return left


def _place(pod: Object) -> str:
    """Return the node on which a pod takes resources; "": none."""
    node: str = pod["spec"].get("nodeName") or ""
    return "" if pod["status"].get("phase") in ("Succeeded", "Failed") else node


def _version(each: Object) -> tuple[str, str]:
    return each["metadata"]["uid"], each["metadata"]["resourceVersion"]


def _is_available(reservation: Object) -> bool:
    status = reservation.get("status") or {}
    return status.get("phase") == "Available" and bool(status.get("nodeName"))


def died(pods: Iterable[Object], known: set[tuple[str, int]]) -> Iterator[str]:
    """Yield the daemons that have ended otherwise than by kill -9.

    A replica whose lease could not be renewed, as no API server was there, ends with 1 as
    documented, and logs so at last. An end that containerd has not seen was while it was away.
    The containers have the terminationMessagePolicy FallbackToLogsOnError.

    known: the ends that are found, by pod and number of restarts, which are not found again.
    """
    for each in pods:
        for status in each["status"].get("containerStatuses", ()):
            ended = status.get("lastState", {}).get("terminated")
            end = (_name(each), status["restartCount"])
            ours = each["metadata"]["namespace"] in (SYSTEM, *NAMESPACES.values())
            if not ours or not ended or end in known:
                continue
            known.add(end)
            if (ended["exitCode"], ended["reason"]) == KILLED or ended["reason"] == UNKNOWN:
                continue
            if LOST_LEASE not in (last_log := ended.get("message", "")):
                code, reason = ended["exitCode"], ended["reason"]
                yield f"{_name(each)} has ended with {code} ({reason}): {last_log}"


def twice(directory: Path, resource: str) -> tuple[int, list[str]]:
    """Return for how many pods a pods/<resource> was created, and for which more than once."""
    created: Counter[str] = Counter()
    for entry in _audited(directory):
        asked = entry.get("objectRef", {})
        done = entry.get("responseStatus", {}).get("code") in (200, 201)
        done = done and "dryRun=" not in entry["requestURI"]
        if done and (asked.get("resource"), asked.get("subresource")) == ("pods", resource):
            created[f"{asked['namespace']}/{asked['name']}"] += 1
    return len(created), sorted(name for name, times in created.items() if times > 1)


def _audited(directory: Path) -> Iterator[Mapping[str, Any]]:
    for log in directory.glob("audit*.log"):
        for line in log.open(errors="replace"):
            if '"pods"' in line and line.endswith("}\n"):  # else the API server was killed in it
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def _requests(pod: Object) -> Counter[str]:
    total = Counter({"pods": 1000})
    for each in pod["spec"]["containers"]:
        for resource, amount in each.get("resources", {}).get("requests", {}).items():
            total[resource] += Quantity.parse(amount).milli
    return total


def _name(each: Object) -> str:
    return f"{each['metadata']['namespace']}/{each['metadata']['name']}"
