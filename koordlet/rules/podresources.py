"""What the kubelet's pod-resources service has to say of devices that the scheduler gave to a pod.

Source: Koordinator pkg/koordlet/statesinformer (pod resources proxy).
"""

from collections.abc import Iterator

from koord.api.pods.deviceallocation import DEVICE_ALLOCATED, device_allocations
from koord.api.pods.pod import Pod
from koordlet.rules.allocateddevices import allocated_functions, allocated_gpus
from koordlet.rules.devices import DeviceType, NodeDevices

NVIDIA_GPU, RDMA = "nvidia.com/gpu", "koordinator.sh/rdma"


def given_devices(pod: Pod, devices: NodeDevices) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(resource, ids) of the GPUs, by UUID, and RDMA functions, by PCI address, of a pod.

    Raises:
        InvalidObject: its annotation is malformed, or names what this node does not have.
    """
    text = pod.annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return
    found = device_allocations(text)
    if gpus := found.get(DeviceType.GPU):
        yield NVIDIA_GPU, tuple(gpu.id for gpu in allocated_gpus(gpus, devices))
    if rdma := found.get(DeviceType.RDMA):
        yield RDMA, allocated_functions(rdma, devices)
