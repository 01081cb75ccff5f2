"""What resctrl says about its last refusal."""

from koordlet.host.errors import KernelFileError
from koordlet.host.files import read_head
from koordlet.host.paths import HostPaths

_MOST = 200  # bytes


def last_status(paths: HostPaths) -> str:
    """Return the kernel's own words about the last command; "": it was accepted, or has none.

    Source: kernel docs, filesystems/resctrl (last_cmd_status).
    """
    try:
        text = read_head(paths.resctrl / "info/last_cmd_status", _MOST)
    except KernelFileError:
        return ""
    found = " ".join(text.decode("ascii", "replace").split())
    return "" if found == "ok" or not found.isprintable() else found
