"""An API server for plugins that ask it themselves: it evicts, and answers what a test says."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from koord.cluster import decoding
from koord.cluster.facts import ClusterPod
from koord.controlplane.testing.cluster import FakeCluster
from koord.kube.errors import ApiError, api_error
from koord.kube.transport import Call, Transport

Json = dict[str, Any]
Answer = Callable[[Call], Json | None]
"""Returns the answer to a request; None: the request is not for it. May raise ApiError."""

_DONE: Json = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


class ScriptedServer(Transport):
    """Answers requests without a network. Evictions are decided by the cluster's budgets.

    All other requests are for the answers that a test has added, and else not found.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.calls: list[Call] = []
        self.evicted: list[ClusterPod] = []
        self._cluster = cluster
        self._answers: list[Answer] = [self._evict]

    def answer(self, answer: Answer) -> None:
        """Ask this first from now on."""
        self._answers.insert(0, answer)

    async def exchange(self, call: Call) -> bytes:
        self.calls.append(call)
        for answer in self._answers:
            found = answer(call)
            if found is not None:
                return json.dumps(found).encode()
        raise refusal(call, 404, "NotFound", "the server could not find the requested resource")

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        raise refusal(call, 404, "NotFound", "there is nothing to watch")
        yield  # makes it a generator

    async def close(self) -> None:
        """There are no connections."""

    def _evict(self, call: Call) -> Json | None:
        pod = self._pod_of(call)
        if pod is None:
            return None
        wanted = json.loads(call.body or b"{}").get("deleteOptions", {}).get("preconditions", {})
        if wanted.get("uid", pod.uid) != pod.uid:
            raise refusal(call, 409, "Conflict", "the UID in the precondition does not match")
        state = self._cluster.state
        budgets = [each for each in state.budgets.values() if each.covers(pod)]
        if any(each.allowed < 1 for each in budgets):
            raise refusal(call, 429, "TooManyRequests", "it would violate the disruption budget")
        for each in budgets:
            state.put(decoding.BUDGET, replace(each, allowed=each.allowed - 1))
        self.evicted.append(pod)
        self._cluster.evict(pod)
        return _DONE

    def _pod_of(self, call: Call) -> ClusterPod | None:
        """The pod whose eviction a request asks for."""
        match call.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]:
                return self._cluster.state.pod(f"{namespace}/{name}")
        return None


def refusal(call: Call, status: int, reason: str, message: str) -> ApiError:
    """Return the error of a request that the server refuses."""
    body = {"kind": "Status", "reason": reason, "message": message}
    if status == 429:
        body["details"] = {"causes": [{"reason": "DisruptionBudget"}]}  # type: ignore[assignment]
    return api_error(status, body, where=call.where)
