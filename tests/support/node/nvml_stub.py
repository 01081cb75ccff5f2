"""A driver of NVIDIA's for tests: a library that says what a file says, and its place in sysfs."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
A100 = "NVIDIA A100-SXM4-80GB"
GIB = 1 << 30


class NvmlStub:
    """A libnvidia-ml.so.1 in a directory of its own; say(...) is what it answers from then on."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler, to build a library in the place of NVML")
        pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")
        self.directory = directory / "nvml"
        self.directory.mkdir()
        self._state = self.directory / "state"
        self.say()
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-Wall",
                "-Werror",
                f'-DSTATE="{self._state}"',
                "-o",
                str(self.directory / "libnvidia-ml.so.1"),
                str(SOURCE),
            ],
            check=True,
        )
        self.environ = {"LD_LIBRARY_PATH": str(self.directory)}

    def say(self, *lines: str, driver: str = "550.90.07") -> None:
        """Set these responses, lines as the source describes; without a driver there are none."""
        text = "".join(f"{line}\n" for line in ([f"driver {driver}"] if driver else []) + [*lines])
        new = self.directory / "new"
        new.write_text(text)
        new.rename(self._state)


def gpu(number: int, name: str = A100, memory: int = 80 * GIB) -> str:
    """The line of a GPU; its PCI address as NVML writes it."""
    return f"gpu GPU-{number:04d} {number} {memory} 00000000:{0x3B + number:02X}:00.0 {name}"


def add_pci_device(sys: Path, address: str, *, numa: int = 0, root: str = "pci0000:3a") -> Path:
    """A device on the PCI bus of a fake host."""
    real = sys / "devices" / root / address
    real.mkdir(parents=True)
    (real / "numa_node").write_text(f"{numa}\n")
    bus = sys / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(real)
    return real


def add_driver(sys: Path) -> None:
    """The driver of NVIDIA's, loaded."""
    (sys / "bus/pci/drivers/nvidia").mkdir(parents=True)
