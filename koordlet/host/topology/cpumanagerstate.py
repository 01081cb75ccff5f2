"""The kubelet's checkpoint of the CPUs that its static CPU manager has given to containers."""

from pathlib import Path

from koord.api.decoding.jsonrules import parse_json
from koord.api.nodes.cpumanager import CpuManagerState, parse_cpu_manager_state
from koord.util.errors import InvalidObject
from koordlet.host.errors import KernelFileError
from koordlet.host.files import read_file

MAX_BYTES = 1 << 20  # a thousand pods with a dozen containers each
_HINT = "is --var-lib-kubelet-dir right? It is read again when it changes"


def cpu_manager_state_file(kubelet: Path) -> Path:
    """Return where the checkpoint is, given the kubelet's directory."""
    return kubelet / "cpu_manager_state"


def read_cpu_manager_state(path: Path) -> CpuManagerState:
    """Return the file's contents; an empty one assigns no CPUs.

    Raises:
        KernelFileError: it cannot be read, or is no such checkpoint.
    """
    data = read_file(path, MAX_BYTES)
    if not data.strip():
        return CpuManagerState()
    try:
        return parse_cpu_manager_state(parse_json(data.decode(), path.name))
    except (InvalidObject, UnicodeDecodeError) as err:
        raise KernelFileError(
            path, wanted="the kubelet's CPU manager state", found=str(err), hint=_HINT
        ) from err
