"""Authorization: token and access reviews, and checks that admission limits this agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koord.api.annotations import DEVICE_ALLOCATED
from koord.kube.client import (
    ACCESS_REVIEWS,
    MERGE_PATCH,
    NODE_METRICS,
    PODS,
    TOKEN_REVIEWS,
    ApiClient,
    Resource,
)
from koord.kube.errors import BadResponse, Forbidden, KubeError
from koord.kube.transport import METADATA, METADATA_LIST, Deadline, Object
from koord.util.clock import Clock

REVIEW_TIMEOUT = 10.0  # seconds for one review; a person waits for it


@dataclass(frozen=True, slots=True)
class User:
    """A user known to the API server."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Reviews:
    """Asks the API server about the clients of this daemon.

    audiences are those a token must be meant for, any of them; () means the API server itself.
    Both methods raise KubeError when there is no judgement: we may not ask, no answer in time, or
    one that is not understood.
    """

    def __init__(self, client: ApiClient, clock: Clock, audiences: Sequence[str] = ()) -> None:
        self._client = client
        self._clock = clock
        self._audiences = list(audiences)

    async def user(self, token: str) -> User | None:
        """Return the user of a token; None when it is unknown, expired, or meant for others."""
        wanted = {"audiences": self._audiences} if self._audiences else {}
        status = await self._review(TOKEN_REVIEWS, "TokenReview", {"token": token, **wanted})
        if not _flag(status, "authenticated", TOKEN_REVIEWS):
            return None
        # A server that knows nothing of audiences leaves them out, and has not checked them.
        if wanted and not set(self._audiences) & set(_texts(status, "audiences", TOKEN_REVIEWS)):
            return None
        return _user(status)

    async def may_get(self, user: User, path: str) -> bool:
        """Return whether the user may get a path that belongs to no Kubernetes resource."""
        spec: Object = {
            "nonResourceAttributes": {"path": path, "verb": "get"},
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
        }
        status = await self._review(ACCESS_REVIEWS, "SubjectAccessReview", spec)
        denied = "denied" in status and _flag(status, "denied", ACCESS_REVIEWS)
        return _flag(status, "allowed", ACCESS_REVIEWS) and not denied

    async def _review(self, resource: Resource, kind: str, spec: Object) -> Object:
        body = {"apiVersion": resource.api_version, "kind": kind, "spec": spec}
        path = resource.collection()
        async with Deadline(self._clock, f"POST {path}") as deadline:
            deadline.enter("a review", REVIEW_TIMEOUT)
            response = await self._client.post(path, body)
        status = response.get("status")
        if not isinstance(status, dict):
            raise _unexpected(resource, "a status", status)
        return status


def _user(status: Object) -> User:
    found = status.get("user")
    if not isinstance(found, dict) or not isinstance(found.get("username"), str):
        raise _unexpected(TOKEN_REVIEWS, "a user with a name", found)
    uid, extra = found.get("uid") or "", found.get("extra") or {}
    if not isinstance(uid, str) or not isinstance(extra, dict):
        raise _unexpected(TOKEN_REVIEWS, "a user with uid and extra", found)
    return User(
        found["username"],
        uid,
        _texts(found, "groups", TOKEN_REVIEWS),
        {key: _texts(extra, key, TOKEN_REVIEWS) for key in extra},
    )


def _flag(status: Object, key: str, resource: Resource) -> bool:
    found = status.get(key, False)  # left out when it is false
    if not isinstance(found, bool):
        raise _unexpected(resource, f"{key} as true or false", found)
    return found


def _texts(parent: Object, key: str, resource: Resource) -> tuple[str, ...]:
    found = parent.get(key) or []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise _unexpected(resource, f"{key} as a list of texts", found)
    return tuple(found)


def _unexpected(resource: Resource, wanted: str, found: object) -> BadResponse:
    return BadResponse(resource.collection(), wanted=wanted, found=f"{found!r:.80}")


ADMISSION_CHECK_TIMEOUT = (
    5.0  # seconds for both requests; a control command waits 10 for all that it shows
)

# How the rejections of admission policies and webhooks are worded. RBAC's say "cannot patch": they
# come before admission is asked.
BY_ADMISSION = ("denied request", "denied the request")


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """holds: the attempt was rejected; None: that is not known. detail says why."""

    holds: bool | None
    detail: str


async def check_own_node(client: ApiClient, node: str, clock: Clock) -> AdmissionCheck:
    """Ask to patch the status of another node's NodeMetric, as a dry run and without a change.

    The patch is empty, so nothing would change even on a server that knows no dry runs.
    """
    try:
        async with Deadline(clock, "the dry run") as deadline:
            deadline.enter("an answer of the API server", ADMISSION_CHECK_TIMEOUT)
            other = await _other_node(client, node)
            if not other:
                found = "the cluster has no NodeMetric of another node to try it on"
                return AdmissionCheck(None, found)
            return await _try(client, other)
    except KubeError as err:
        return AdmissionCheck(None, str(err))


async def _other_node(client: ApiClient, node: str) -> str:
    """The name of another node with a NodeMetric; "" when there is none."""
    path = NODE_METRICS.collection()
    async for page in client.pages(path, size=2, accept=METADATA_LIST):
        for item in page.items:
            name = item["metadata"].get("name")
            if isinstance(name, str) and name not in ("", node):
                return name
    return ""


async def _try(client: ApiClient, other: str) -> AdmissionCheck:
    path = NODE_METRICS.object(other, subresource="status")
    try:
        await client.patch(path, {}, MERGE_PATCH, accept=METADATA, dry_run=True)
    except Forbidden as err:
        if not any(words in err.message for words in BY_ADMISSION):
            return AdmissionCheck(None, f"refused before admission was asked: {err.message}")
        return AdmissionCheck(True, f"refused as wanted: {err.message}")
    return AdmissionCheck(False, f"a dry run of a write to the NodeMetric of {other} was allowed")


_NAME = "koordlet-doctor"
_BY_HAND = (
    f"`kubectl run {_NAME} --image=none --dry-run=server "
    f"--annotations={DEVICE_ALLOCATED}={{}}` as a tenant has to be refused"
)


async def check_pod_allocations(client: ApiClient, namespace: str, clock: Clock) -> AdmissionCheck:
    """Ask to create a pod that gives itself devices, as a dry run.

    The pod is one that no scheduler places, on a server that knows no dry runs.
    """
    try:
        async with Deadline(clock, "the dry run") as deadline:
            deadline.enter("an answer of the API server", ADMISSION_CHECK_TIMEOUT)
            await client.create(PODS.collection(namespace), _pod(namespace), dry_run=True)
    except Forbidden as err:
        return _refused(err.message)
    except KubeError as err:
        return AdmissionCheck(None, str(err))
    return AdmissionCheck(False, f"a dry run of a pod with {DEVICE_ALLOCATED} was allowed")


def _refused(message: str) -> AdmissionCheck:
    if not any(words in message for words in BY_ADMISSION):
        found = "this agent may not create pods, as it should, so it cannot try"
        return AdmissionCheck(None, f"{found}: {_BY_HAND}")
    if DEVICE_ALLOCATED not in message:
        return AdmissionCheck(None, f"refused for another reason: {message}; {_BY_HAND}")
    return AdmissionCheck(True, f"refused as wanted: {message}")


def _pod(namespace: str) -> dict[str, Any]:
    """A pod that the strictest pod security admits."""
    container = {
        "name": "none",
        "image": "registry.invalid/none",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _NAME,
            "namespace": namespace,
            "annotations": {DEVICE_ALLOCATED: "{}"},
        },
        "spec": {"schedulerName": _NAME, "restartPolicy": "Never", "containers": [container]},
    }
