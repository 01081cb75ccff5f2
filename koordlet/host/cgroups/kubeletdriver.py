"""Finds the cgroup driver that this host's kubelet is configured to use, before pods are there."""

import os
import stat
from functools import lru_cache
from pathlib import Path

from koord.util.documents import decode
from koord.util.errors import InvalidObject
from koord.util.logs import get_logger
from koordlet.host.cgroups.layout import Driver
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_up_to
from koordlet.host.proc.pids import is_trusted, system_processes
from koordlet.host.proc.procfiles import parse_cmdline

MAX_CONFIG = 64 << 10  # bytes; a KubeletConfiguration has a few thousand

log = get_logger("koordlet.host")


def driver_of_kubelet(proc: Path) -> Driver | None:
    """Return the driver from the kubelet's arguments or config file; None without a kubelet.

    A kubelet that names none uses cgroupfs. None also when it names one that does not exist, or
    its config file cannot be used: it is larger than 64 KiB, no regular file, not root's or ours,
    or others may write it. That is logged once.

    Source: Kubernetes, --cgroup-driver and KubeletConfiguration.cgroupDriver.
    """
    for process in system_processes(proc, "kubelet"):
        try:
            arguments = parse_file(process.directory / "cmdline", parse_cmdline)
            return _driver(process.directory, arguments)
        except KernelFileError:
            continue  # it has ended meanwhile
        except (OSError, InvalidObject, ValueError) as err:
            _warn(process.pid, str(err))
    return None


def _driver(process: Path, arguments: list[str]) -> Driver:
    """Raises OSError, InvalidObject, ValueError, or KernelFileError: it has ended."""
    named = _flag(arguments, "--cgroup-driver")
    config = _flag(arguments, "--config")
    if not named and config:
        named = _driver_in_config(_read(_as_seen_by(process, config)), config)
    return Driver(named or Driver.CGROUPFS.value)


def _flag(arguments: list[str], flag: str) -> str:
    """Return the last value of a flag; "" when it is not there."""
    value = ""
    for position, argument in enumerate(arguments):
        name, equals, rest = argument.partition("=")
        if name == flag:
            value = rest if equals else "".join(arguments[position + 1 : position + 2])
    return value


def _as_seen_by(process: Path, path: str) -> Path:
    """Return a path that leads into the process's own mount namespace."""
    return process / "root" / path.lstrip("/") if path.startswith("/") else process / "cwd" / path


def _read(path: Path) -> bytes:
    """Return a file of root or of our own user, which no other may write.

    Links are followed, as the kubelet does, but what is opened at their end is what is judged.

    Raises:
        OSError, ValueError: it cannot be opened, or is not such a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("wanted a regular file as the kubelet's --config")
        if not is_trusted(found.st_uid) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(
                "wanted a file of root that no other may write as the kubelet's --config, found "
                f"user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
            )
        data = read_up_to(descriptor, MAX_CONFIG + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_CONFIG:
        raise ValueError(f"wanted at most {MAX_CONFIG} bytes as the kubelet's --config")
    return data


def _driver_in_config(data: bytes, where: str) -> str:
    """Return the value of cgroupDriver in YAML or JSON; "" when it is not there."""
    config = decode(data, where)
    if not isinstance(config, dict):
        raise InvalidObject(where, wanted="a KubeletConfiguration", found=config)
    return str(config.get("cgroupDriver") or "")


@lru_cache(maxsize=16)
def _warn(pid: int, error: str) -> None:
    """Log it once: every view of the host asks."""
    log.warning("kubelet_driver.unknown", pid=pid, error=error)
