"""The webhook that pods are mutated by, where the API server has no MutatingAdmissionPolicy.

Every replica serves it. It never refuses a pod: what goes wrong is a warning to whoever creates it,
and a request that is no AdmissionReview gets an error, which the API server ignores.
"""

import base64
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram

from koord.component.http.limits import BodyLimiter
from koord.component.http.responses import HttpError, json_body, limits
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop
from koord_manager import PREFIX

PATH = "/mutate-pod"  # Koordinator's
API_VERSION = "admission.k8s.io/v1"
MAX_BODY = 8 << 20  # bytes; a review has two objects of 1.5 MiB at most, JSON as it may be written
MAX_BODIES = 32 << 20  # bytes of all reviews together
MAX_DEPTH = 64  # of a review; a pod has about 20
MAX_WARNING = 200  # characters; Kubernetes cuts at 256 as a rule

log = get_logger("koord_manager.webhook")

Pod = dict[str, Any]
Mutate = Callable[[Pod, str], Pod]
"""Returns what becomes of a pod that is created in a namespace. Raises what it likes."""


@dataclass(frozen=True, slots=True)
class Review:
    """A request of the API server about a pod that is created."""

    uid: str
    namespace: str
    pod: Pod | None  # None: it is about something else, which is let through


def parse_review(body: bytes | bytearray) -> Review:
    """Return the request of an AdmissionReview.

    Raises:
        HttpError: it is none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise HttpError(400, f"wanted an AdmissionReview, found no JSON: {err}") from err
    request = found.get("request") if isinstance(found, dict) else None
    if not isinstance(request, dict) or found.get("apiVersion") != API_VERSION:
        raise HttpError(400, f"wanted an AdmissionReview of {API_VERSION}, found something else")
    uid, kind = request.get("uid"), request.get("kind")
    if not isinstance(uid, str) or not 0 < len(uid) <= 128:
        raise HttpError(400, "wanted a uid, found none")
    pod, namespace = request.get("object"), request.get("namespace")
    is_new_pod = (
        isinstance(kind, dict)
        and (kind.get("group"), kind.get("version"), kind.get("kind")) == ("", "v1", "Pod")
        and request.get("operation") == "CREATE"
        and not request.get("subResource")
        and isinstance(pod, dict)
        and isinstance(namespace, str)
    )
    if not is_new_pod:
        return Review(uid, "", None)
    if _depth(pod) > MAX_DEPTH:
        raise HttpError(400, f"wanted a pod of at most {MAX_DEPTH} levels, found more")
    return Review(uid, str(namespace), pod)


def _depth(value: object) -> int:
    """Return how deep a value of JSON is, at most one more than MAX_DEPTH."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [part for one in level for part in _parts(one)]
    return depth


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def json_patch(old: object, new: object, path: str = "") -> list[dict[str, object]]:
    """Return the operations of RFC 6902 that make one value of JSON of another."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[dict[str, object]] = []
        for key in old.keys() | new.keys():
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                found.append({"op": "remove", "path": place})
            elif key not in old:
                found.append({"op": "add", "path": place, "value": new[key]})
            else:
                found += json_patch(old[key], new[key], place)
        return sorted(found, key=lambda one: str(one["path"]))
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = enumerate(zip(old, new, strict=True))
        return [one for at, (before, after) in parts
                for one in json_patch(before, after, f"{path}/{at}")]  # fmt: skip
    is_same = old == new and type(old) is type(new)  # 1 is no true
    return [] if is_same else [{"op": "replace", "path": path, "value": new}]


class PodWebhook:
    """The server. A part of the daemon."""

    name = "webhook"

    def __init__(
        self,
        mutate: Mutate,
        address: Address,
        context: ssl.SSLContext,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        wait_usable: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """It listens when wait_usable has returned: when the context has a certificate."""
        self._mutate = mutate
        self._wait_usable = wait_usable
        self._clock = clock
        self._limited = LimitedLog(log, clock)
        self._bodies = BodyLimiter(largest=MAX_BODY, most=MAX_BODIES)
        self._reviews = Counter(
            f"{PREFIX}_webhook_reviews_total",
            "Reviews of pods by outcome: mutated, unchanged or failed.",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_webhook_review_seconds",
            "Time that a review of a pod takes, without reading it.",
            buckets=(0.001, 0.01, 0.1, 1.0),
            registry=registry,
        )
        app = web.Application(middlewares=[limits(clock)], client_max_size=MAX_BODY)
        app.router.add_post(PATH, self._review)
        self._server = HttpServer(
            app, address, context, clock=clock, registry=registry,
            prefix=f"{PREFIX}_webhook",
        )  # fmt: skip

    @property
    def port(self) -> int:
        """The port in use; 0 while it does not listen."""
        return self._server.port

    async def run(self, stop: Stop) -> None:
        """Serve until stop. Raises ListenError."""
        if self._wait_usable is not None:
            await stop.bound(self._wait_usable())
            if stop.is_set():
                return
        await self._server.start()
        try:
            log.info("webhook.listening", port=self.port, path=PATH)
            await stop.wait()
        finally:
            await self._server.stop()

    async def _review(self, request: web.Request) -> web.Response:
        async with self._bodies.read(request) as body:
            review = parse_review(body)
            began = self._clock.monotonic()
            answer: dict[str, object] = {"uid": review.uid, "allowed": True}
            if review.pod is not None:
                answer |= self._patch(review.pod, review.namespace)
                self._seconds.observe(self._clock.monotonic() - began)
        found = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer}
        return json_body(json.dumps(found).encode())

    def _patch(self, pod: Pod, namespace: str) -> dict[str, object]:
        try:
            operations = json_patch(pod, self._mutate(pod, namespace))
        except Exception as err:  # a pod's or a profile's fault must not keep pods from being made
            self._reviews.labels("failed").inc()
            text = error_text(err)[:MAX_WARNING]
            self._limited.warning("pod.not_mutated", namespace=namespace, error=text)
            return {"warnings": [f"koord-manager has left the pod as it is: {text}"]}
        self._reviews.labels("mutated" if operations else "unchanged").inc()
        if not operations:
            return {}
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        return {"patchType": "JSONPatch", "patch": patch}
