"""The Go programs of the tests, and how they are built.

`python tests/support/programs.py` builds all. With an empty cache that takes some minutes, which CI
spends beside other tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
BUILD_SECONDS = 1800.0  # some minutes for two slow cores and an empty cache


@dataclass(frozen=True, slots=True)
class Program:
    """One program."""

    name: str  # of its file in build/
    source: Path  # the directory with go.mod
    package: str = "."
    flags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # what else it is called by, where that says what it is

    @property
    def binary(self) -> Path:
        """Its file."""
        return REPOSITORY / "build" / self.name

    def build(self) -> Path:
        """Build it and return its file; there is little to do when it was built before."""
        self.binary.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["go", "build", "-ldflags=-s -w", *self.flags, "-o", self.binary, self.package],
            cwd=self.source,
            check=True,
            timeout=BUILD_SECONDS,
        )
        for name in self.names:
            link = self.called(name)
            link.unlink(missing_ok=True)
            link.symlink_to(self.binary.name)
        return self.binary

    def called(self, name: str) -> Path:
        """Its file by one of its other names."""
        return self.binary.with_name(name)


_E2E = REPOSITORY / "tests" / "e2e"
ADMISSION = Program("admission", _E2E / "admission")
KUSTOMIZE = Program("kustomize", _E2E / "kustomize", "sigs.k8s.io/kustomize/kustomize/v5")
BED = Program("bed", REPOSITORY / "benchmarks" / "bed")  # as benchmarks build it
NRI_RUNTIME = Program("nriruntime", _E2E / "nriruntime")
NRI_RUNTIME_08 = Program(
    "nriruntime08", _E2E / "nriruntime", flags=("-modfile=nri08.mod", "-tags=nri08")
)
POD_EXEC = Program("podexec", _E2E / "podexec")
HELM = Program("helm", _E2E / "helm", "helm.sh/helm/v3/cmd/helm")
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_WITHOUT = ("-tags=no_btrfs,no_devmapper,no_zfs,no_aufs",)
CONTAINERD = Program("containerd", _E2E / "containerd", f"{_CONTAINERD}/containerd", _WITHOUT)
CONTAINERD_SHIM = Program(  # containerd looks for one of this name
    "containerd-shim-runc-v2",
    _E2E / "containerd",
    f"{_CONTAINERD}/containerd-shim-runc-v2",
    _WITHOUT,
)
CRI_CLIENT = Program("criclient", _E2E / "containerd")
PAUSE = Program("pause", _E2E / "containerd", "./pause")
_VERSION = "k8s.io/component-base/version"


def _kubernetes(name: str, version: str, *flags: str) -> Program:
    """Return Kubernetes' programs, several in one, which differ by the name of the call."""
    return Program(
        name,
        REPOSITORY / "tests" / "cluster" / "kubernetes",
        flags=(f"-ldflags=-s -w -X {_VERSION}.gitVersion=v{version}", *flags),
        names=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
    )


_KUBERNETES = {  # by minor version; the patch version is that of the module file
    "1.35": _kubernetes("kubernetes", "1.35.6"),
    "1.30": _kubernetes("kubernetes-1.30/kubernetes", "1.30.14", "-modfile=v130.mod", "-tags=v130"),
}
_CHOSEN = os.environ.get("KUBERNETES") or next(iter(_KUBERNETES))
if _CHOSEN not in _KUBERNETES:
    sys.exit(f"KUBERNETES={_CHOSEN}: wanted one of {', '.join(_KUBERNETES)}")
KUBERNETES = _KUBERNETES[_CHOSEN]
MINOR = int(_CHOSEN.partition(".")[2])  # of Kubernetes 1
_CNI, _PLUGINS = REPOSITORY / "tests" / "cluster" / "cni", "github.com/containernetworking/plugins"
CNI = tuple(  # of container networks; a runtime looks for them by these names
    Program(package.rpartition("/")[2], _CNI, f"{_PLUGINS}/plugins/{package}")
    for package in ("main/bridge", "main/loopback", "ipam/host-local")
)
ALL = (
    BED, ADMISSION, KUSTOMIZE, NRI_RUNTIME, NRI_RUNTIME_08,
    POD_EXEC, HELM, CONTAINERD, CONTAINERD_SHIM, CRI_CLIENT, PAUSE, KUBERNETES, *CNI,
)  # fmt: skip


def ask(program: Path, question: Any) -> list[str]:
    """What a program says to a question, both JSON."""
    done = subprocess.run(
        [program], input=json.dumps(question), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def ask_policy(
    program: Path, manifests: Sequence[Mapping[str, Any]], policy: str, *requests: Any
) -> list[str]:
    """Return what ADMISSION says by a policy of some manifests; "" for what it allows."""

    def of(kind: str, name: str = "") -> list[Mapping[str, Any]]:
        return [
            one
            for one in manifests
            if one["kind"] == kind and name in ("", one["metadata"]["name"])
        ]

    [decides] = of("ValidatingAdmissionPolicy", policy)
    [binding] = of("ValidatingAdmissionPolicyBinding", policy)
    question = {
        "policy": decides,
        "binding": binding,
        "roles": of("ClusterRole"),
        "roleBindings": of("ClusterRoleBinding"),
        "requests": list(requests),
    }
    return ask(program, question)


def main() -> int:
    """Build all."""
    for program in ALL:
        program.build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
