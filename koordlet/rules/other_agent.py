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

    Names and labels are free, so a pod counts only where no tenant makes pods, which is in
    namespaces and in our own, or if it may act on the node, which an agent has to.

    None also when this daemon's own pod is not among them: what is ours is what that has in common
    with others, its DaemonSet or the repository of its image. So earlier pods of ours are not
    taken for the other, whatever their version.
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
            and _runs(pod)
            and (pod.namespace in trusted or pod.reaches_host)
            and not _is_kin(pod, own)
        ),
        None,
    )


def image_of(pod: Pod) -> str:
    """The image of the container called koordlet, else of the first; "" when there is none."""
    named = [item for item in pod.containers if item.name == _CONTAINER]
    return next((item.image for item in (*named, *pod.containers)), "")


def repository(image: str) -> str:
    """An image's name without its tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _is_koordlet(pod: Pod) -> bool:
    controller = pod.controller
    if controller is None or controller.kind != "DaemonSet":
        return False
    return pod.labels.get(_LABEL) == "koordlet" or controller.name in _NAMES


def _runs(pod: Pod) -> bool:
    """Whether one of its processes may still act: what has crashed or ended is left over."""
    return not pod.finished and any(status.running for status in pod.statuses)


def _is_kin(pod: Pod, own: Pod) -> bool:
    if pod.uid == own.uid or (own.controller and pod.controller == own.controller):
        return True
    image = image_of(own)
    return bool(image) and repository(image_of(pod)) == repository(image)
