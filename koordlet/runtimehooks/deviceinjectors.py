"""The injectors of devices: GPUs with HAMi's limits, and RDMA interfaces.

They go by the devices that this node has, not by what the pod's annotation says.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from koord.api.pods.deviceallocation import DEVICE_ALLOCATED, device_allocations
from koordlet.features import GPU_ENV_INJECT, RDMA_DEVICE_INJECT
from koordlet.host.devices.rdma import rdma_files
from koordlet.host.mountsource import check_mount_source
from koordlet.rules.allocateddevices import allocated_functions
from koordlet.rules.devices import DeviceType, NodeDevices
from koordlet.rules.gpuenvironment import GpuEnvironment, gpu_environment
from koordlet.runtimehooks.containerdirectory import renew_directory
from koordlet.runtimehooks.injections import Injection
from koordlet.statesinformer.model import PodMeta


class GpuInjector:
    """Makes the pod's GPUs visible, and limits a share of one where HAMi-core isolates it."""

    name = GPU_ENV_INJECT

    def __init__(
        self,
        devices: Callable[[], NodeDevices],
        library: str,
        root: Path,
        *,
        is_monitored: Callable[[], bool],
    ) -> None:
        """library: HAMi-core's, a checked path. root: the node's root directory.

        is_monitored: whether HAMi's monitor runs here, and gets a directory of each container.
        """
        self._devices = devices
        self._is_monitored = is_monitored
        self._root = root
        self._library = library

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        """Raises InvalidObject: the annotation cannot be used; UnsafeFile, OSError: a mount."""
        [container] = meta.containers
        found = gpu_environment(
            meta.pod,
            container.name,
            self._devices(),
            self._library,
            monitored=self._is_monitored(),
        )
        if found.mounts:
            await asyncio.to_thread(self._prepare, found, dry_run)
        return Injection(env=found.env, mounts=found.mounts)

    def _prepare(self, found: GpuEnvironment, dry_run: bool) -> None:
        for mount in found.mounts:
            if mount.source != found.directory:
                check_mount_source(self._root, mount.source)
        if found.directory and not dry_run:
            renew_directory(self._root / found.directory.lstrip("/"))


class RdmaInjector:
    """Gives the container the device files of the pod's RDMA functions."""

    name = RDMA_DEVICE_INJECT

    def __init__(self, devices: Callable[[], NodeDevices], sys: Path) -> None:
        self._devices = devices
        self._sys = sys

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        """Raises InvalidObject: as GpuInjector; KernelFileError: a device file is not there."""
        text = meta.pod.annotations.get(DEVICE_ALLOCATED)
        given = device_allocations(text).get(DeviceType.RDMA, ()) if text is not None else ()
        if not given:
            return Injection()
        functions = allocated_functions(given, self._devices())
        return Injection(devices=await asyncio.to_thread(rdma_files, self._sys, functions))
