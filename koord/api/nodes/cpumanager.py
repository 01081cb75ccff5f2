"""The CPUs that the kubelet's static CPU manager has given to containers.

Source: Kubernetes, the checkpoint cpu_manager_state; Koordinator, calGuaranteedCpu.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.decoding.fields import Fields
from koord.api.pods.pod import Pod
from koord.api.pods.resourcestatus import allocated_cpus
from koord.api.qos import QoSClass
from koord.util.cpulist import parse_cpulist
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class CpuManagerState:
    """The checkpoint. An empty one has given nothing away."""

    policy: str = ""  # "none" or "static"; "" when the file does not say
    entries: Mapping[str, frozenset[int]] = field(default_factory=dict)  # pod UID -> its CPUs


@dataclass(frozen=True, slots=True)
class PodCpus:
    """The CPUs that a pod has from the kubelet. Namespace and name are "" for an unknown pod."""

    uid: str
    cpus: frozenset[int]
    namespace: str = ""
    name: str = ""


def parse_cpu_manager_state(obj: object) -> CpuManagerState:
    """Return the checkpoint of a JSON object; as in Go, the case of its keys does not matter.

    Lists of CPUs that are malformed count as empty, as in Koordinator.

    Raises:
        InvalidObject: it has another shape.
    """
    where = "cpu_manager_state"
    root = Fields({str(key).lower(): value for key, value in Fields(obj, where).raw.items()}, where)
    entries = root.nested("entries")
    return CpuManagerState(
        policy=root.text("policyname"),
        entries={uid: _union(entries.texts(uid).values()) for uid in entries.raw},
    )


def kubelet_allocations(state: CpuManagerState, pods: Iterable[Pod]) -> tuple[PodCpus, ...]:
    """Return what the kubelet alone manages, by ascending UID.

    Left out are pods without CPUs, and those whose CPUs are Koordinator's business: labelled LS or
    BE, or with CPUs from its scheduler.
    """
    known = {pod.uid: pod for pod in pods}
    return tuple(_allocations(state, known))


def _allocations(state: CpuManagerState, known: Mapping[str, Pod]) -> Iterator[PodCpus]:
    for uid, cpus in sorted(state.entries.items()):
        pod = known.get(uid)
        if not cpus or (pod is not None and _is_managed(pod)):
            continue
        yield PodCpus(uid, cpus, *((pod.namespace, pod.name) if pod else ()))


def _is_managed(pod: Pod) -> bool:
    if pod.raw_qos_class in (QoSClass.LS, QoSClass.BE):
        return True
    try:
        return bool(allocated_cpus(pod))
    except InvalidObject:
        return False


def _union(lists: Iterable[str]) -> frozenset[int]:
    cpus: set[int] = set()
    for text in lists:
        try:
            cpus |= parse_cpulist(text)
        except ValueError:
            continue
    return frozenset(cpus)
