"""Finds Koordinator's koordlet among the pods of a node, but not this daemon's own pods.

Source: Koordinator's DaemonSet: name koord-koordlet (koordlet in its Helm chart), pods labelled
koord-app=koordlet, container koordlet.
"""

from collections.abc import Collection, Iterable

from koord.api.pod import Pod

SYSTEM_NAMESPACES = ("koordinator-system", "koordlet-system", "kube-system")
_NAMES = ("koordlet", "koord-koordlet")
_LABEL, _CONTAINER = "koord-app", "koordlet"


def other_agent_pod(
    pods: Iterable[Pod], own_uid: str, namespaces: Collection[str] = SYSTEM_NAMESPACES
) -> Pod | None:
    """Return a running pod of another koordlet; None when there is none.

    Any tenant can choose names and labels. So a pod counts only in namespaces where no tenant makes
    pods (the given ones and this daemon's own), or if it has the privileges to act on the node.

    This daemon's pods are those with the DaemonSet or the image repository of its own pod, whatever
    their version. None also when its own pod is not in the list.
    """
    known = tuple(pods)
    own = next((pod for pod in known if pod.uid == own_uid), None)
    if own is None:
        return None
    trusted = {own.namespace, *namespaces}
    return next(
        (
            pod
            for pod in known
            if _is_koordlet(pod)
            and _is_running(pod)
            and (pod.namespace in trusted or pod.reaches_host)
            and not _is_own_pod(pod, own)
        ),
        None,
    )


def image_of(pod: Pod) -> str:
    """The image of the container called koordlet, else of the first; "" when there is none."""
    named = [item for item in pod.containers if item.name == _CONTAINER]
    return next((item.image for item in (*named, *pod.containers)), "")


def image_repository(image: str) -> str:
    """An image's name without its tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _is_koordlet(pod: Pod) -> bool:
    controller = pod.controller
    if controller is None or controller.kind != "DaemonSet":
        return False
    return pod.labels.get(_LABEL) == "koordlet" or controller.name in _NAMES


def _is_running(pod: Pod) -> bool:
    """Whether one of its processes may still act; a crashed or ended pod cannot."""
    return not pod.finished and any(status.running for status in pod.statuses)


def _is_own_pod(pod: Pod, own: Pod) -> bool:
    if pod.uid == own.uid or (own.controller and pod.controller == own.controller):
        return True
    image = image_of(own)
    return bool(image) and image_repository(image_of(pod)) == image_repository(image)
