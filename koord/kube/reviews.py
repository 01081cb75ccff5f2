"""Reviews of bearer tokens by the API server: the user, and the user's rights.

Source: Kubernetes, TokenReview (authentication.k8s.io/v1) and SubjectAccessReview
(authorization.k8s.io/v1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.deadline import Deadline
from koord.kube.errors import BadAnswer
from koord.kube.resource import ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from koord.util.clock import Clock

PATIENCE = 10.0  # seconds for one review; a person waits for it


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
            deadline.enter("a review", PATIENCE)
            answer = await self._client.post(path, body)
        status = answer.get("status")
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


def _unexpected(resource: Resource, wanted: str, found: object) -> BadAnswer:
    return BadAnswer(resource.collection(), wanted=wanted, found=f"{found!r:.80}")
