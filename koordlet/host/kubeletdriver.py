"""Which cgroup driver the kubelet of this host was told to use, for hosts without pods yet."""

from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import read_file
from koordlet.host.layout import Driver
from koordlet.host.pids import processes_named
from koordlet.host.procfiles import parse_cmdline


def driver_of_kubelet(proc: Path) -> Driver | None:
    """Return the driver from the kubelet's arguments or config file; None without a kubelet.

    A kubelet that names none uses cgroupfs. None also when it names one that does not exist, or
    its config file cannot be read.

    Source: Kubernetes, --cgroup-driver and KubeletConfiguration.cgroupDriver.
    """
    for process in processes_named(proc, "kubelet"):
        try:
            arguments = parse_cmdline(read_file(process / "cmdline"))
            return _driver(process, arguments)
        except (KernelFileError, ValueError):
            continue
    return None


def _driver(process: Path, arguments: list[str]) -> Driver:
    named = _flag(arguments, "--cgroup-driver")
    config = _flag(arguments, "--config")
    if not named and config:
        named = _driver_in_config(read_file(_as_seen_by(process, config)))
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


def _driver_in_config(text: bytes) -> str:
    """Return the value of cgroupDriver in YAML or JSON; "" when it is not there."""
    import yaml  # not at the top: only hosts without pods need it

    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ValueError(f"wanted a kubelet configuration, found {err}") from err
    driver = config.get("cgroupDriver") if isinstance(config, dict) else None
    return str(driver or "")
