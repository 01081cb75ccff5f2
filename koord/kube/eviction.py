"""Evictions through the API server (policy/v1), which asks PodDisruptionBudgets."""

from collections.abc import Mapping
from typing import Protocol

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.kube.client import PODS, ApiClient
from koord.kube.errors import (
    ApiError,
    BadResponse,
    ConfigError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    TlsVerificationError,
    TooManyRequests,
)
from koord.kube.events import Event, EventRecorder, EventType, ObjectRef
from koord.kube.transport import Deadline, Object
from koord.util.clock import Clock
from koord.util.logs import get_logger

EVICTION_TIMEOUT = (
    10.0  # seconds for the whole of one eviction; a plugin's round has thirty by default
)
_BY_BUDGET = "DisruptionBudget"  # the cause of a 429 that is not about the server's load
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"  # a 500, but one that protects the pod
_GATEWAY_TIMEOUT = 504

log = get_logger("koord.kube")


class Evictable(Protocol):
    """The identity of a pod."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


class PodEvictions:
    """Asks for evictions, and reports them as events on the pod under the name of component."""

    def __init__(
        self, client: ApiClient, events: EventRecorder, clock: Clock, component: str
    ) -> None:
        self._component = component
        self._client = client
        self._events = events
        self._clock = clock

    async def evict(
        self,
        pod: Evictable,
        grace_seconds: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> EvictionResponse:
        """Ask once for the eviction of exactly this pod. Never raises for what a server does.

        options are meta/v1 DeleteOptions.
        """
        path = PODS.object(pod.name, namespace=pod.namespace, subresource="eviction")
        try:
            async with Deadline(self._clock, f"POST {path}") as deadline:
                deadline.enter("an answer", EVICTION_TIMEOUT)
                body = eviction(pod, grace_seconds, options)
                _check_yes(await self._client.post(path, body), path)
        except KubeError as err:
            response = read_rejection(err)
            if not isinstance(err, ApiError):
                log.warning("eviction.request_failed", error=str(err))
            return response
        return EvictionResponse(EvictionOutcome.EVICTED)

    def announce(self, pod: Evictable, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the pod in the cluster. Never waits."""
        about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
        kind = EventType.WARNING if warning else EventType.NORMAL
        self._events.emit(Event(about, kind, reason, message, self._component))


def eviction(
    pod: Evictable, grace_seconds: int | None, options: Mapping[str, object] | None = None
) -> Object:
    """The Eviction object. The UID keeps a new pod of the same name from dying for the old one."""
    wanted: Object = {**(options or {}), "preconditions": {"uid": pod.uid}}
    if grace_seconds is not None:
        wanted["gracePeriodSeconds"] = grace_seconds
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": wanted,
    }


def _check_yes(response: Object, path: str) -> None:
    """See that it was the API server that said yes, as what it allows may end in a kill.

    Raises:
        BadResponse: it is no Status of success, for example from a proxy.
    """
    if response.get("kind") != "Status" or response.get("status") != "Success":
        found = f"kind {response.get('kind')!r:.40} and status {response.get('status')!r:.40}"
        raise BadResponse(f"POST {path}", wanted="a Status of success", found=found)


def read_rejection(err: KubeError) -> EvictionResponse:
    """The outcome of an eviction whose request has ended with this error."""
    if not isinstance(err, ApiError):
        nothing_sent = isinstance(err, TlsVerificationError | ConfigError)
        # The error's text may name a proxy with its password; this one goes into an event.
        message = f"no answer of the API server that can be used ({type(err).__name__})"
        return EvictionResponse(EvictionOutcome.FAILED, message, busy=True, certain=nothing_sent)
    outcome, busy = _outcome(err)
    certain = not isinstance(err, ServerError) or (
        bool(err.body) and err.status != _GATEWAY_TIMEOUT
    )
    return EvictionResponse(outcome, _said(err), err.retry_after, busy, certain)


def _outcome(err: ApiError) -> tuple[EvictionOutcome, bool]:
    """The outcome, and whether other pods have to wait as well."""
    if isinstance(err, TooManyRequests):
        by_budget = any(cause.get("reason") == _BY_BUDGET for cause in _causes(err))
        return (
            (EvictionOutcome.REFUSED, False) if by_budget else (EvictionOutcome.RATE_LIMITED, True)
        )
    if isinstance(err, NotFound):  # without a reason it is the path that is not known
        return (EvictionOutcome.GONE, False) if err.reason else (EvictionOutcome.FAILED, True)
    if isinstance(err, Conflict) and "uid" in err.message.lower():
        return EvictionOutcome.GONE, False
    if isinstance(err, Forbidden):
        return EvictionOutcome.NOT_ALLOWED, False
    if isinstance(err, ServerError) and _SEVERAL_BUDGETS in err.message:
        return EvictionOutcome.REFUSED, False
    return EvictionOutcome.FAILED, isinstance(err, ServerError) and err.retry_after is not None


def _said(err: ApiError) -> str:
    """The server's message, with what it says about the budgets."""
    causes = [str(cause.get("message", ""))[:500] for cause in _causes(err)]
    texts = [f"{err.status} {err.reason}".strip(), err.message, *causes[:3]]
    return ": ".join(filter(None, texts))


def _causes(err: ApiError) -> list[dict[str, object]]:
    causes = err.details.get("causes")
    if not isinstance(causes, list):
        return []
    return [cause for cause in causes if isinstance(cause, dict)]
