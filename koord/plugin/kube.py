"""The API server, for plugins: resources, client, informers, events, errors."""

from koord.kube.client import (
    MERGE_PATCH,
    NODES,
    PERSISTENT_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ApiClient,
    OneObject,
)
from koord.kube.client import Resource as ApiResource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    PatchRejected,
    TooManyRequests,
    Unreachable,
)
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.informer import SharedInformer
from koord.kube.reflector import Change, ChangeKind, MissingKind, Watched
from koord.kube.transport import Call, Deadline, Transport
from koord.kube.transport import Limits as RequestLimits

__all__ = [
    "MERGE_PATCH",
    "NODES",
    "PERSISTENT_CLAIMS",
    "PERSISTENT_VOLUMES",
    "PODS",
    "AlreadyExists",
    "ApiClient",  # type of handle.services.client
    "ApiConfig",
    "ApiError",
    "ApiResource",
    "Call",
    "Change",
    "ChangeKind",
    "Conflict",
    "Deadline",
    "Event",
    "EventType",
    "KubeError",
    "MissingKind",
    "NotFound",
    "ObjectRef",
    "OneObject",  # an ApiResource of which one object is followed
    "PatchRejected",
    "RequestLimits",
    "SharedInformer",
    "TooManyRequests",
    "Transport",
    "Unreachable",
    "Watched",
]
