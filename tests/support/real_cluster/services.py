"""The programs of the cluster: how each is started, and the files that it reads.

All run in a machine of their own (inner_machine), whose addresses on the loopback interface they
have; so they take the ports and directories that they have by default.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.programs import CNI, CONTAINERD, KUBERNETES, MINOR
from tests.support.real_apiserver.control_plane import MUTATING_POLICIES
from tests.support.real_cluster.access import (
    CONTROLLERS,
    KUBELET,
    NODE,
    NODE_IP,
    SCHEDULER,
    SERVER,
    SERVICE_IP,
    Access,
)
from tests.support.real_runtime.containerd_node import IMAGE

ETCD = "http://127.0.0.1:2379"
RUNTIME = Path("/run/containerd/containerd.sock")
OWN_STAT = "proc-stat"  # a file in the cluster's directory
PODS = "10.88.0.0/16"  # the network of pods on the real node
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
_CNI = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
    ],
}


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs as long as the cluster does."""

    name: str
    command: tuple[str | Path, ...]
    ready: str = ""  # an address that answers 200 then, or the path of a socket
    environ: Mapping[str, str] = field(default_factory=dict)


def own_stat(directory: Path) -> Service:
    """Keeps the /proc/stat of agents that look at this machine alone."""
    file = directory / OWN_STAT
    module = "tests.support.real_cluster.own_stat"
    return Service("own-stat", (sys.executable, "-m", module, file), str(file))


def etcd(directory: Path) -> Service:
    """Its data is in the directory, and need not outlive the machine."""
    command = ("etcd", "--data-dir", directory / "etcd", "--unsafe-no-fsync")
    return Service("etcd", command, f"{ETCD}/health")


def api_server(directory: Path, access: Access) -> Service:
    """With RBAC, all of Kubernetes' admission, and an audit log of each request."""
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT_POLICY))
    command = (
        KUBERNETES.called("kube-apiserver"),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={NODE_IP}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_IP}/16",
        "--allow-privileged",
        "--authorization-mode=Node,RBAC",
        # The second one is not on by default: the agent has a right for clusters that have it.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        f"--token-auth-file={access.tokens}",
        f"--client-ca-file={access.ca}",
        f"--tls-cert-file={access.api_server.certificate}",
        f"--tls-private-key-file={access.api_server.key}",
        f"--service-account-issuer={SERVER}",
        f"--service-account-key-file={access.service_accounts}",
        f"--service-account-signing-key-file={access.service_accounts}",
        f"--kubelet-certificate-authority={access.ca}",
        f"--kubelet-client-certificate={access.kubelet_client.certificate}",
        f"--kubelet-client-key={access.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={directory / 'audit.log'}",
        "--profiling=false",
        *MUTATING_POLICIES,
    )
    return Service("kube-apiserver", command, f"https://{NODE_IP}/readyz")


def controllers(access: Access) -> Service:
    """All of Kubernetes' own."""
    command = (
        KUBERNETES.called("kube-controller-manager"),
        f"--kubeconfig={access.kubeconfig(CONTROLLERS)}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={access.service_accounts}",
        f"--root-ca-file={access.ca}",
        f"--cluster-signing-cert-file={access.ca}",
        f"--cluster-signing-key-file={access.ca_key}",
        "--profiling=false",
    )
    return Service("kube-controller-manager", command, "https://127.0.0.1:10257/healthz")


def scheduler(access: Access) -> Service:
    """Kubernetes' own, for pods that name no other; those of a DaemonSet, for one."""
    command = (
        KUBERNETES.called("kube-scheduler"),
        f"--kubeconfig={access.kubeconfig(SCHEDULER)}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    )
    return Service("kube-scheduler", command, "https://127.0.0.1:10259/healthz")


def containerd(directory: Path) -> Service:
    """With runc and NRI; its pods have networks of their own on a bridge."""
    file = directory / "containerd.toml"
    # Not below a directory that is overlaid, where no overlay of a container can be.
    root = directory / "containerd"
    file.write_text(f"""
version = 3
root = "{root}"
disabled_plugins = ["io.containerd.differ.v1.erofs", "io.containerd.snapshotter.v1.erofs"]
[grpc]
address = "{RUNTIME}"
[plugins."io.containerd.nri.v1.nri"]
disable = false
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
enable_selinux = false
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI[0].binary.parent}"]
conf_dir = "{directory / "cni"}"
""")
    (directory / "cni").mkdir()
    (directory / "cni" / "pods.conflist").write_text(json.dumps(_CNI))
    command = (CONTAINERD.binary, f"--config={file}")
    path = f"{CONTAINERD.binary.parent}:{os.environ['PATH']}"
    return Service("containerd", command, str(RUNTIME), {"PATH": path})


def kubelet(directory: Path, access: Access) -> Service:
    """The one real node's."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(access.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(access.kubelet.certificate),
        "tlsPrivateKeyFile": str(access.kubelet.key),
        "containerRuntimeEndpoint": f"unix://{RUNTIME}",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        # The disk is the machine's: how full it is says nothing about the cluster.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }
    if MINOR >= 31:
        config["failCgroupV1"] = False
    if MINOR >= 35:
        # A container that is killed again and again starts again soon; the default is 5 minutes.
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "2s"}
    file = directory / "kubelet.json"
    file.write_text(json.dumps(config))
    command = (
        KUBERNETES.called("kubelet"),
        f"--config={file}",
        f"--kubeconfig={access.kubeconfig(KUBELET)}",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_IP}",
    )
    return Service("kubelet", command, "http://127.0.0.1:10248/healthz")
