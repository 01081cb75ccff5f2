"""What Koordinator's scheduler has allocated to a pod."""

from koordlet.api.annotation import annotation_fields
from koordlet.api.pod import Pod
from koordlet.util.cpulist import parse_cpulist
from koordlet.util.errors import InvalidObject

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"  # annotation of a pod


def allocated_cpus(pod: Pod) -> frozenset[int]:
    """Return the CPUs that the scheduler has chosen for a pod; empty when it has chosen none.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    text = pod.annotations.get(RESOURCE_STATUS)
    if text is None:
        return frozenset()
    where = f"pod {pod.namespace}/{pod.name}: {RESOURCE_STATUS}"
    cpuset = annotation_fields(text, where).text("cpuset")
    try:
        return parse_cpulist(cpuset)
    except ValueError as err:
        raise InvalidObject(f"{where}.cpuset", wanted="a list of CPUs", found=cpuset) from err
