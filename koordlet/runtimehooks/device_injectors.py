"""The injectors of devices: GPUs with HAMi's limits and directory, and RDMA interfaces."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from koord.api.annotations import DEVICE_ALLOCATED, device_allocations, devices_of_container
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koordlet.features import GPU_ENV_INJECT, RDMA_DEVICE_INJECT
from koordlet.host.devices import rdma_files
from koordlet.host.paths import check_mount_source
from koordlet.rules.allocated_devices import GpuEnvironment, allocated_functions, gpu_environment
from koordlet.rules.devices import DeviceType, NodeDevices
from koordlet.runtimehooks.adjustments import Injection
from koordlet.statesinformer.podmeta import PodMeta

_OPEN_TO_ALL = 0o777
_MAX_ENTRIES, _MAX_DEPTH = (
    4096,
    8,
)  # files, and directories in each other, that are removed of an old one
_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = get_logger("koordlet.runtimehooks")


def renew_directory(path: Path) -> None:
    """Make an empty directory that all may write, in place of what has the name. Blocks.

    What was there is moved aside first, so nothing in it keeps the container from its start. Then
    it is removed, if it is not too much.

    Raises:
        UnsafeFile: another user could change the directory that it is in.
        OSError: it cannot be made.
    """
    above = OwnedDirectory.open(path.parent)
    try:
        old = f"removed-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            (above / path.name).rename(old)
        os.mkdir(path.name, dir_fd=above.descriptor)
        descriptor = os.open(path.name, _STEP, dir_fd=above.descriptor)
        try:
            os.fchmod(descriptor, _OPEN_TO_ALL)
        finally:
            os.close(descriptor)
        _remove_old(above, old)
    finally:
        above.close()


def _remove_old(above: OwnedDirectory, name: str) -> None:
    try:
        _remove(above.descriptor, name, iter(range(_MAX_ENTRIES)), _MAX_DEPTH)
    except FileNotFoundError:
        pass  # there was none
    except OSError as err:
        log.warning("hami.directory_remove_failed", path=str(above / name), error=str(err))


def _remove(above: int, name: str, budget: Iterator[int], depth: int) -> None:
    """Remove a name and all below it, without following links. Raises OSError."""
    if next(budget, None) is None or not depth:
        raise OSError(
            f"wanted at most {_MAX_ENTRIES} files in {_MAX_DEPTH} directories, found more"
        )
    try:
        os.unlink(name, dir_fd=above)
    except IsADirectoryError:
        descriptor = os.open(name, _STEP, dir_fd=above)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    _remove(descriptor, entry.name, budget, depth - 1)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=above)


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
        if given:
            [container] = meta.containers
            given = devices_of_container(given, container.name)
        if not given:
            return Injection()
        functions = allocated_functions(given, self._devices())
        return Injection(devices=await asyncio.to_thread(rdma_files, self._sys, functions))
