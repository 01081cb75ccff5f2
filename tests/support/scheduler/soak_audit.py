"""What must hold of bindings, from outside: the API server's objects and its log, nothing else."""

import json
from collections import Counter
from typing import Any

from tests.support.scheduler.loop import Json
from tests.support.scheduler.soak_server import THEIRS, Request, Server
from tests.support.scheduler.soak_storage import claims_of


class Audit:
    """Checks each binding when it is carried out, and the whole cluster when all is quiet.

    A decision is about a cluster as its scheduler saw it: a node is as good as it was at any time
    since what had been delivered to that scheduler when it reserved the pod. What the pods on the
    node take is known to who has bound them, so there is no such grace for that. Only of a
    request whose client gave it up nobody knows: pods that are bound so are left out.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        server.on_bound = self._bound
        self.orphans: set[str] = set()  # uids; bound by requests that were given up
        self.bound: Counter[str] = Counter()  # by uid
        self.answered: dict[str, object] = {}  # uid -> line; the client knows that it has bound it
        self.unwritten: set[str] = set()  # keys of pods whose status was refused for good
        self.faults: list[str] = []

    def check_log(self) -> None:
        """No request that changes something was sent by who did not lead."""
        for request in self.server.log:
            if not request.allowed:
                self.faults.append(f"sent without the lead: {request.call.where}")
            if request.call.path.endswith("/binding"):
                self._check_binding(request)
            elif request.call.path.endswith("/status") and _for_good(request.answer):
                *_, namespace, _, name, _ = request.call.path.split("/")
                self.unwritten.add(f"{namespace}/{name}")
        self.server.log.clear()

    def check_pending(self) -> None:
        """All is quiet: whatever is pending fits nowhere, and says why."""
        for key, pod in self.server.pods.items():
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            nodes = () if self._sharing(pod) else self.server.nodes.items()
            fits = [name for name, node in nodes if self._fits(pod, name, node)]
            if fits:
                self.faults.append(f"{key} is pending, but fits {fits}")
            conditions = pod["status"].get("conditions") or [{}]
            found = conditions[0].get("type"), conditions[0].get("status")
            if found != ("PodScheduled", "False") and key not in self.unwritten:
                self.faults.append(f"{key} is pending, and its condition is {conditions[0]}")

    def _check_binding(self, request: Request) -> None:
        """Nobody binds again what it knows to have bound."""
        uid = str(_body(request)["metadata"]["uid"])
        if uid in self.answered and self.answered[uid] is request.line:
            self.faults.append(f"bound again although that was answered: {request.call.where}")
        if request.answer == "ok":
            self.answered[uid] = request.line

    def _bound(self, request: Request, pod: Json) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        self.bound[uid] += 1
        if self.bound[uid] > 1:
            self.faults.append(f"{uid} bound {self.bound[uid]} times")
        if request.given_up:
            self.orphans.add(uid)
            return
        if "deletionTimestamp" in pod["metadata"]:
            return  # it takes no room of its own for long, and its node is right below
        since = request.line.version_before(request.line.decided[uid])
        states = self.server.node_since(name, since)
        self._check_claims(uid, pod)
        if not any(self._fits(pod, name, state) for state in states):
            found = [self._wrong(pod, name, state) for state in states]
            self.faults.append(f"{uid} bound to {name} although {found or 'there is none'}")

    def _check_claims(self, uid: str, pod: Json) -> None:
        """It is bound when its claims are, and alone with those that are for one pod.

        Where another scheduler binds pods meanwhile, nobody can see to the latter.
        """
        storage = self.server.storage
        for key in claims_of(pod):
            if key not in storage.claims or not storage.is_bound(key):
                self.faults.append(f"{uid} bound although its claim {key} is not")
        ours = {found["metadata"]["uid"]: found["spec"]["nodeName"] for found in self._sharing(pod)}
        if shared := [one for one, node in ours.items() if node != THEIRS]:
            self.faults.append(f"{uid} bound although {shared} use its claims")

    def _sharing(self, pod: Json) -> list[Json]:
        """Other bound pods that have a claim which the pod wants for itself."""
        exclusive = self.server.storage.exclusive(pod)
        return [
            one
            for one in self.server.pods.values()
            if exclusive.intersection(claims_of(one))
            and one["spec"].get("nodeName")
            and one is not pod
            and one["metadata"]["uid"] not in self.orphans
        ]

    def _fits(self, pod: Json, name: str, node: Json) -> bool:
        return not self._wrong(pod, name, node)

    def _wrong(self, pod: Json, name: str, node: Json) -> str:
        """Why a pod does not go beside the others of a node; "": it does."""
        if node["spec"].get("unschedulable"):
            return "cordoned"
        room, others = node["status"]["allocatable"], self._others(pod, name)
        for resource in ("cpu", "memory"):
            used = sum(_requests(one, resource) for one in (*others, pod))
            if used > int(room[resource].removesuffix("Gi")):
                return f"{resource}: {used} of {room[resource]}"
        if len(others) + 1 > int(room["pods"]):
            return f"pods: {len(others) + 1} of {room['pods']}"
        if ports := _ports(pod) & set().union(*map(_ports, others)):
            return f"ports: {ports}"
        return next(self.server.storage.wrong(pod, name, node, others), "")

    def _others(self, pod: Json, name: str) -> list[Json]:
        return [
            one
            for one in self.server.pods.values()
            if one["spec"].get("nodeName") == name
            and one is not pod
            and one["metadata"]["uid"] not in self.orphans
        ]


def _body(request: Request) -> Any:
    return json.loads(request.call.body or b"{}")


def _requests(pod: Json, resource: str) -> int:
    amount: str = pod["spec"]["containers"][0]["resources"]["requests"][resource]
    return int(amount.removesuffix("Gi"))


def _ports(pod: Json) -> set[int]:
    return {one["hostPort"] for one in pod["spec"]["containers"][0].get("ports", ())}


def _for_good(answer: str) -> bool:
    """Whether it is an error that does not pass."""
    return any(f"refused with {status} " in answer for status in (404, 409))
