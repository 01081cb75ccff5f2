"""Mount points of the kernel's file systems, as seen by this process."""

from dataclasses import dataclass
from pathlib import Path

from koordlet.host.kernelfs import check_file_system, check_kernel_file
from koordlet.host.resource import Root

HOST_MODE = "hostMode"


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Root directories of the host. All other paths are made from these.

    Source: Koordinator's `agent_mode` and its `--*-root-dir` flags.
    """

    cgroup: Path
    proc: Path  # of the host's pid namespace: the pod runs with hostPID
    sys: Path
    sysfs: Path  # <sys>/fs, where resctrl is mounted
    var_run: Path
    kubelet: Path
    root: Path  # the node's own; in a container what the component hami mounts of it
    # Plain files replace those of the kernel: for tests. Set in code only, by no flag and no
    # environment variable: with it, what is written to is not checked.
    laid_out: bool = False

    @classmethod
    def for_mode(cls, mode: str) -> "HostPaths":
        """Return the default roots of an agent mode: the host's own for exactly "hostMode".

        Anything else means the mounts of Koordinator's DaemonSet ("dsMode").
        """
        return _HOST if mode == HOST_MODE else _CONTAINER

    @classmethod
    def below(cls, root: Path) -> "HostPaths":
        """Return the roots of a whole host laid out under one directory, for tests and replays."""
        return cls(
            cgroup=root / "cgroup",
            proc=root / "proc",
            sys=root / "sys",
            sysfs=root / "sys" / "fs",
            var_run=root / "run",
            kubelet=root / "kubelet",
            root=root / "root",
            laid_out=True,
        )

    @property
    def resctrl(self) -> Path:
        """Where resctrl is mounted, if it is."""
        return self.sysfs / "resctrl"

    def check(self, descriptor: int, root: Root, path: str) -> None:
        """See that an open file is the kernel's, before it is written.

        Raises:
            KernelFileError: it is not; path is for the message.
            OSError: the kernel does not say.
        """
        if not self.laid_out:
            check_kernel_file(descriptor, root, path)

    def check_directory(self, descriptor: int, root: Root, path: str) -> None:
        """As check, for a directory in which something is made or removed."""
        if not self.laid_out:
            check_file_system(descriptor, root, path)


_KUBELET = Path("/var/lib/kubelet")
_CONTAINER = HostPaths(
    cgroup=Path("/host-cgroup"),
    proc=Path("/proc"),
    sys=Path("/host-sys"),
    sysfs=Path("/host-sys-fs"),
    var_run=Path("/host-var-run"),
    kubelet=_KUBELET,
    root=Path("/host-root"),
)
_HOST = HostPaths(
    cgroup=Path("/sys/fs/cgroup"),
    proc=Path("/proc"),
    sys=Path("/sys"),
    sysfs=Path("/sys/fs"),
    var_run=Path("/var/run"),
    kubelet=_KUBELET,
    root=Path("/"),
)
