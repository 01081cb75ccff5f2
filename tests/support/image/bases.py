"""The two images that the Containerfile builds on, made of Debian's packages by mmdebstrap.

They stand in for debian:12-slim and distroless/python3-debian12, as no test asks a registry.
"""

import hashlib
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE.parents[2] / "build" / "image"  # what was made for an earlier run
DISTROLESS = (
    "base-files", "ca-certificates", "libgcc-s1", "libpython3-stdlib", "libssl3", "libstdc++6",
    "netbase", "python3-minimal", "tzdata", "zlib1g",
)  # fmt: skip
_SECONDS = 900.0


def debian() -> Path:
    """A tar file of Debian 12 with a shell and apt."""
    return _made("--variant=minbase", "--include=ca-certificates")


def distroless(architecture: str = "amd64") -> Path:
    """A tar file with Debian 12's Python, without a shell; for another machine, too."""
    hook = HERE / "distroless.sh"
    include = f"--include={','.join(DISTROLESS)}"
    # No program of a package runs, which another machine's could not.
    extract = ("--variant=extract", f"--architectures={architecture}", include)
    return _made(*extract, f"--extract-hook={hook}", changes_with=hook.read_bytes())


def _made(*options: str, changes_with: bytes = b"") -> Path:
    name = hashlib.sha256(repr(options).encode() + changes_with).hexdigest()[:16]
    kept = KEPT / f"{name}.tar"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(".new")
        command = ["mmdebstrap", "--mode=root", "--format=tar", "--quiet", *options, "bookworm"]
        try:
            subprocess.run([*command, str(new)], check=True, timeout=_SECONDS)
            new.rename(kept)
        finally:
            new.unlink(missing_ok=True)
    return kept
