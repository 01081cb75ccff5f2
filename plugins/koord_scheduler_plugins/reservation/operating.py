"""Pods in operating mode Reservation: real pods whose room other pods may have.

Source: Koordinator, apis/extension/operating_pod.go.
"""

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.reservation import CURRENT_OWNER, OPERATING_MODE, OWNERS
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.reservation.objects import (
    Phase,
    Policy,
    Reservation,
    ReservationSpec,
    inner_amounts,
    restricted_resources,
)
from koord_scheduler_plugins.reservation.owners import PodReference, read_owners

_MODE = "Reservation"
_MAX_TEXT = 256 * 1024  # characters of an annotation


def is_operating(pod: ClusterPod) -> bool:
    """Whether a pod acts as a reservation."""
    return pod.labels.get(OPERATING_MODE) == _MODE


def operating_reservation(pod: ClusterPod) -> Reservation:
    """Return a pod in operating mode as a reservation; with absurd annotations it has no spec.

    It is available while the pod runs and is ready. It never expires: it lives as long as its pod.
    """
    requests = dict(pod.spec.requests)
    annotations = dict(pod.annotations)
    spec, problems = None, []
    try:
        spec = ReservationSpec(
            owners=read_owners(_list(annotations.get(OWNERS, "")), "owners"),
            ttl=0.0,
            policy=Policy.ALIGNED,
            requests=requests,
            inner=inner_amounts(annotations),
            restricted=restricted_resources(annotations),
            resized={},
        )
    except InvalidObject as err:
        problems.append(str(err))
    is_ready = pod.phase == "Running" and pod.ready
    phase = pod.phase if pod.finished else str(Phase.AVAILABLE) if is_ready else ""
    return Reservation(
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        created=pod.created,
        deleting=pod.deleting,
        spec=spec,
        phase=phase,
        node=pod.node,
        allocatable=requests,
        allocated={},
        problems=tuple(problems),
        raw={},
    )


def current_owner(pod: ClusterPod) -> PodReference | None:
    """Return the pod that has the room of one in operating mode, as its workload says.

    None: nobody has it.

    Raises:
        InvalidObject: its annotation is malformed.
    """
    text = next((value for key, value in pod.annotations if key == CURRENT_OWNER), "")
    if not text:
        return None
    fields = Fields(parse_json(text, CURRENT_OWNER), CURRENT_OWNER)
    found = PodReference(fields.text("uid"), fields.text("namespace"), fields.text("name"))
    return None if found == PodReference() else found


def _list(text: str) -> Fields:
    if len(text) > _MAX_TEXT:
        raise InvalidObject(OWNERS, wanted=f"at most {_MAX_TEXT} characters", found=len(text))
    return Fields({"owners": parse_json(text, OWNERS) if text else []}, OWNERS)
