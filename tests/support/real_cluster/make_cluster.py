"""`make cluster`: a real Kubernetes cluster on this machine, in a machine of its own, until ^C.

`python -m tests.support.real_cluster.make_cluster [--nodes NUMBER] [--images] [-- COMMAND...]`:
with a command it is run in the cluster's machine with KUBECONFIG set, and the cluster ends with it.
"""

import argparse
import fcntl
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import (
    CNI,
    CONTAINERD,
    CONTAINERD_SHIM,
    CRI_CLIENT,
    HELM,
    KUBERNETES,
    PAUSE,
    REPOSITORY,
    Program,
)  # fmt: skip
from tests.support.real_apiserver.control_plane import missing
from tests.support.real_cluster.inner_machine import InnerMachine, unusable

DIRECTORY = REPOSITORY / "build" / "cluster"
_SUPERVISOR = "tests.support.real_cluster.supervisor"


@contextmanager
def alone() -> Iterator[None]:
    """One cluster at a time in a checkout."""
    DIRECTORY.parent.mkdir(exist_ok=True)
    with (DIRECTORY.with_suffix(".lock")).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"a cluster runs already in {DIRECTORY}")
        yield


def build(*more: Program) -> None:
    """Build what it takes, and more; minutes, the first time."""
    print("building Kubernetes and containerd (ten minutes, the first time)", file=sys.stderr)
    for program in (KUBERNETES, CONTAINERD, CONTAINERD_SHIM, CRI_CLIENT, PAUSE, *CNI, *more):
        program.build()


def write_ways_in(machine: InnerMachine) -> None:
    """Scripts that run a command in the cluster's machine: any, and kubectl."""
    kubeconfig = machine.directory / "access" / "admin.kubeconfig"
    enter = " ".join(machine.enter("--wd=.", "env", f"KUBECONFIG={kubeconfig}"))
    for name, command in (("enter", ""), ("kubectl", str(KUBERNETES.called("kubectl")))):
        script = machine.directory / name
        script.write_text(f'#!/bin/sh\nexec {enter} {command} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the status of the command; 0 after ^C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="nodes without a kubelet")
    parser.add_argument("--images", action="store_true", help="with the images of this tree")
    parser.add_argument("command", nargs="*", help="run in it; the cluster ends with it")
    options = parser.parse_args(arguments)
    if reason := unusable() or missing():
        sys.exit(reason if not missing() else f"needs {missing()}")
    build(*(HELM,) * options.images)  # with images there is something to install
    images: list[Path] = []
    if options.images:
        from tests.support.image.treeimages import (
            image_tars,  # buildah and mmdebstrap are needed for these alone
        )

        images = image_tars()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = ["--", *options.command] if options.command else []
    with alone(), InnerMachine(DIRECTORY) as machine:
        process = machine.start(
            sys.executable, "-m", _SUPERVISOR, DIRECTORY, str(options.nodes), *images, *command
        )
        write_ways_in(machine)
        if not command:
            print(
                f"ways in: {DIRECTORY}/kubectl, {DIRECTORY}/enter COMMAND; ^C ends it", flush=True
            )
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 0 if not command else 130


if __name__ == "__main__":
    sys.exit(main())
