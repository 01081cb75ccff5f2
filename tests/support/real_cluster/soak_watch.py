"""Invariants of a cluster whatever is killed in it, checked from outside of the daemons.

Pods and nodes are listed again and again, each list as the API server has it at one moment; who
was evicted and bound is in the API server's audit log.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from koord.api.quantity import Quantity
from koord.api.reservation import ALLOCATED
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.background import Background
from tests.support.real_cluster.client import LEASES, NAMESPACES, SYSTEM, Object
from tests.support.real_cluster.colocation import (
    BATCH_CPU,
    BATCH_MEMORY,
    beyond_capacity,
    not_mutated,
)

KILLED = (137, "Error")  # the exit code and reason of a container after kill -9
UNKNOWN = "Unknown"  # the reason of an end that containerd has not seen
LOST_LEASE = ": lost lease "  # in the last words of a replica
_BATCH = (BATCH_CPU, BATCH_MEMORY)
_WRITES = ("create", "update", "patch", "delete")
_OF_ALL_REPLICAS = ("leases", "events", "tokenreviews", "subjectaccessreviews")
_OFFERS = 10  # looks before a batch pod came, in which its scheduler has seen the node's offer
_RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
_PERIOD = 1.0  # seconds between two looks


Check = Callable[[list[Object]], Iterable[str]]
"""Returns what does not hold of all pods of the cluster at one moment."""


class Watch(Background):
    """Looks at pods and nodes until it is stopped; wrong: the violations it found.

    batch: batch pods that were bound. changes: of what nodes offer to batch pods.
    """

    def __init__(self, api: Api, *checks: Check) -> None:
        """checks: further ones."""
        super().__init__()
        self.wrong: list[str] = []
        self._checks = checks
        self.looks = 0
        self.bound = self.batch = self.changes = 0
        self._offers: deque[dict[str, Counter[str]]] = deque(maxlen=_OFFERS)
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
            arrived = self._arrived(pods)
            self._note_offers(nodes)
            for found in (
                *above_offers(pods, arrived, self._offers),
                *above_allocatable(pods, nodes, lasting),
                *given_twice(pods, lasting),
                *beyond_capacity(nodes),
                *not_mutated(pods),
                *self._moved(pods),
                *died(pods, self._ends),
                *(found for check in self._checks for found in check(pods)),
            ):
                if found not in self.wrong:
                    print(f"WRONG: {found}", flush=True)
                    self.wrong.append(found)

    def _arrived(self, pods: Iterable[Object]) -> set[str]:
        """Return the UIDs of batch pods that are bound since the look before."""
        new = {
            each["metadata"]["uid"]
            for each in pods
            if each["spec"].get("nodeName") and BATCH_CPU in _requests(each)
        } - self._nodes.keys()
        self.batch += len(new)
        return new

    def _note_offers(self, nodes: Iterable[Object]) -> None:
        offers = {each["metadata"]["name"]: _batch(each) for each in nodes}
        if self._offers:
            self.changes += sum(self._offers[-1].get(node) != each for node, each in offers.items())
        self._offers.append(offers)

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
            counts = resource in room and resource not in _BATCH
            most = Quantity.parse(room[resource]).milli if counts else amount
            if amount > most:
                yield f"pods on {name} request {amount} of {most} thousandths of {resource}"


def above_offers(
    pods: Iterable[Object], arrived: Collection[str], offers: Iterable[Mapping[str, Counter[str]]]
) -> Iterator[str]:
    """Yield the nodes to which batch pods came for which they have lately not offered enough.

    What a node's pods hold may be more than it offers once it offers less, so only nodes count to
    which a pod came since the look before.

    arrived: the UIDs of these pods. offers: by node, in the last looks.
    """
    held: dict[str, Counter[str]] = {}
    for each in pods:
        if node := _place(each):
            wanted = {key: value for key, value in _requests(each).items() if key in _BATCH}
            held.setdefault(node, Counter()).update(wanted)
    for node in {_place(each) for each in pods if each["metadata"].get("uid") in arrived} - {""}:
        for resource, amount in held[node].items():
            most = max(each.get(node, Counter())[resource] for each in offers)
            if amount > most:
                yield f"batch pods on {node} hold {amount} of {most} thousandths of {resource}"


def _batch(node: Object) -> Counter[str]:
    """Return what a node offers to batch pods, in thousandths."""
    room = node["status"].get("allocatable", {})
    return Counter({each: Quantity.parse(room[each]).milli for each in _BATCH if each in room})


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
    for entry in _audited(directory, '"pods"'):
        asked = entry.get("objectRef", {})
        if _is_done(entry) and (asked.get("resource"), asked.get("subresource")) == (
            "pods",
            resource,
        ):
            created[f"{asked['namespace']}/{asked['name']}"] += 1
    return len(created), sorted(name for name, times in created.items() if times > 1)


def written_by_others(directory: Path) -> list[str]:
    """Return what replicas have written between two renewals of the Lease by the same other one.

    So long that one led, and none but it writes.
    """
    found = []
    for daemon in ("koord-descheduler", "koord-scheduler", "koord-manager"):
        user = f"system:serviceaccount:{NAMESPACES.get(daemon, SYSTEM)}:{daemon}"
        entries = [each for each in _audited(directory, user) if _is_written_by(each, user)]
        entries.sort(key=lambda each: str(each["requestReceivedTimestamp"]))
        leader, waiting = "", list[Mapping[str, Any]]()  # what was written since its renewal
        for each in entries:
            asked = each["objectRef"]
            if asked["resource"] not in _OF_ALL_REPLICAS:
                waiting.append(each)
            elif asked["resource"] == "leases" and asked.get("name") == LEASES.get(daemon, daemon):
                if _pod_of(each) == leader:
                    others = [one for one in waiting if _pod_of(one) != leader]
                    found += [f"{_pod_of(one)} wrote {one['requestURI']}, and {leader} led"
                              for one in others]  # fmt: skip
                leader, waiting = _pod_of(each), []
    return found


def _is_written_by(entry: Mapping[str, Any], user: str) -> bool:
    written = entry.get("verb") in _WRITES and "objectRef" in entry and _is_done(entry)
    return written and entry["user"].get("username") == user


def _pod_of(entry: Mapping[str, Any]) -> str:
    """Return the pod whose token a request had."""
    extra = entry["user"].get("extra", {})
    return str(extra.get("authentication.kubernetes.io/pod-name", [""])[0])


def _is_done(entry: Mapping[str, Any]) -> bool:
    done = entry.get("responseStatus", {}).get("code") in (200, 201)
    return done and "dryRun=" not in entry["requestURI"]


def _audited(directory: Path, text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of the audit log with that text."""
    for log in directory.glob("audit*.log"):
        for line in log.open(errors="replace"):
            if text in line and line.endswith("}\n"):  # else the API server was killed in it
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
