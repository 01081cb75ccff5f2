"""The pod that this process runs in, from its service account's token."""

import base64
import binascii
import json
from collections.abc import Mapping

from koord.kube.access.config import ApiConfig
from koord.util.filewatch import FileReadError, read_bounded

MAX_TOKEN_BYTES = 1 << 20


def own_pod_uid(config: ApiConfig) -> str:
    """Return the uid of the pod we run in; "" when that is not known, for example on a host."""
    if config.token_file is None:
        return pod_uid(config.token)
    try:
        return pod_uid(read_bounded(config.token_file, MAX_TOKEN_BYTES).decode("ascii", "replace"))
    except FileReadError:
        return ""


def pod_uid(token: str) -> str:
    """Return the uid of the pod that a token is bound to; "" when it is bound to none.

    The signature is not checked: it is our own token, and the API server will.

    Source: Kubernetes, bound service account tokens; claim kubernetes.io.
    """
    _, _, rest = token.partition(".")
    payload, _, _ = rest.partition(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return ""  # no JWT: a static token, or one of another kind
    uid = _nested(_nested(_nested(claims, "kubernetes.io"), "pod"), "uid")
    return uid if isinstance(uid, str) else ""


def _nested(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None
