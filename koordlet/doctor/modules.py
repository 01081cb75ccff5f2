"""Whether the kernel has, or can load, the modules of traffic control. Nothing is loaded."""

import os
from collections.abc import Iterator
from pathlib import Path

from koordlet.doctor.finding import Finding

MODULES = {  # by what is lost without them
    "sch_htb": ("rates of traffic classes", "CONFIG_NET_SCH_HTB"),
    "cls_u32": ("traffic classes by a pod's address", "CONFIG_NET_CLS_U32"),
}
_LISTS = ("modules.dep", "modules.builtin")
_MOST_BYTES = 8 << 20  # of a list; Debian's has 0.6 MiB
_LIBRARY = Path("/lib/modules")


def probe_modules(sys: Path, library: Path = _LIBRARY) -> Iterator[Finding]:
    """Yield a finding for each module. A pod sees those that are loaded only, of others nothing."""
    directory = library / os.uname().release
    text = b"\n".join(filter(None, (_read(directory / name) for name in _LISTS)))
    for name, (adds, option) in MODULES.items():
        if (sys / "module" / name).is_dir():
            supported, detail = True, f"{adds}; loaded"
        elif not text:
            supported, detail = None, f"{adds}; not loaded, and {directory} is not to be seen"
        else:
            supported = f"/{name}.ko".encode() in text
            detail = f"{adds}; {'loaded with its first use' if supported else 'not there'}"
        fix = "" if supported else f"a kernel with {option}, and `modprobe {name}`"
        yield Finding("network", f"module {name}", supported, ("TCNetworkQoS",), detail, fix)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""
