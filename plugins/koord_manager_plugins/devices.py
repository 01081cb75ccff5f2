"""GPUDeviceResource and RDMADeviceResource: what the devices of a node have together.

Source: Koordinator, noderesource/plugins gpudeviceresource and rdmadevicereource.
"""

from koord_manager.plugin import Calculation, Handle, NodeFacts, NodeResourcePlugin, Offered, Term

GPU, GPU_CORE = "koordinator.sh/gpu", "koordinator.sh/gpu-core"
GPU_SHARED, RDMA = "koordinator.sh/gpu.shared", "koordinator.sh/rdma"
GPU_RESOURCES = (
    GPU,
    GPU_CORE,
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    GPU_SHARED,
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
)
VENDOR = "node.koordinator.sh/gpu-vendor"
LABELS = (VENDOR, "node.koordinator.sh/gpu-model", "node.koordinator.sh/gpu-driver-version")
SHARED_GATE = "EnableSyncGPUSharedResource"
WHOLE = 100  # percent of one device
# one object for all nodes
_NO_GPU = Calculation(
    resources=dict.fromkeys(GPU_RESOURCES, Offered(amount=None, reason="no healthy GPU"))
)
_NO_RDMA = Calculation(resources={RDMA: Offered(amount=None, reason="no healthy device")})


class GPUDeviceResource(NodeResourcePlugin):
    """Offers the sums of healthy GPUs, and copies their labels."""

    order = 50
    reads_reports = False

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments."""
        self._has_shared = handle.gates.enabled(SHARED_GATE)

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        devices = node.devices
        found = devices.devices if devices else ()
        healthy = [one for one in found if one.is_healthy and one.type == "gpu"]
        if devices is None or not healthy:
            return _NO_GPU
        sums: dict[str, int] = {}
        for one in healthy:
            for name, amount in one.resources.items():
                sums[name] = sums.get(name, 0) + amount
        if devices.labels.get(VENDOR, "") in ("", "nvidia") and GPU_CORE in sums:
            sums[GPU] = sums[GPU_CORE]
        if self._has_shared:
            sums[GPU_SHARED] = WHOLE * len(healthy)
        term = f"{len(healthy)} healthy GPUs"
        return Calculation(
            resources={
                name: Offered(amount=sums[name], terms=(Term(term, sums[name]),))
                for name in GPU_RESOURCES
                if name in sums
            },
            labels={key: devices.labels[key] for key in LABELS if key in devices.labels},
        )


class RDMADeviceResource(NodeResourcePlugin):
    """Offers the sum of healthy RDMA devices."""

    order = 60
    reads_reports = False

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        devices = node.devices.devices if node.devices else ()
        count = sum(1 for one in devices if one.is_healthy and one.type == "rdma")
        if not count:
            return _NO_RDMA
        total = WHOLE * count
        terms = (Term(f"{count} healthy devices", total),)
        return Calculation(resources={RDMA: Offered(amount=total, terms=terms)})
