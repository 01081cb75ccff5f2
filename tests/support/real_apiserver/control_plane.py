"""etcd and kube-apiserver on loopback, started by the tests themselves.

There is no kubelet and no controller: their part is the tests'. tests/cluster has a whole cluster.
"""

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

from koord.kube.credentials import ApiConfig
from tests.support.programs import KUBERNETES, MINOR

START_SECONDS = 120.0
ISSUER = "https://kubernetes.default.svc"
MUTATING_MINOR = 34  # minor version of the first API servers with MutatingAdmissionPolicy in beta
# Flags for it, which is on by default from 1.36 on.
MUTATING_POLICIES = (
    (
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    )
    if MINOR >= MUTATING_MINOR
    else ()
)

_PROGRAMS = {
    "go": "Go 1.25 or newer (go.dev/dl)",
    "etcd": "etcd (Debian: apt-get install etcd-server)",
    "openssl": "openssl (Debian: apt-get install openssl)",
}
_OTHERS = {"prometheus": "prometheus (Debian: apt-get install prometheus)"}


def missing(*programs: str) -> str:
    """What this machine lacks of them, by default of the control plane's; "" when nothing."""
    lacking = (name for name in programs or _PROGRAMS if not shutil.which(name))
    return " and ".join({**_PROGRAMS, **_OTHERS}[name] for name in lacking)


class ControlPlane:
    """One etcd and one kube-apiserver with TLS, RBAC and all of Kubernetes' admission.

    Their files are in a directory. The program must have been built.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._etcd_port, peer_port, self._port = _free_ports(3)
        self._etcd_url = f"http://127.0.0.1:{self._etcd_port}"
        self._peer_url = f"http://127.0.0.1:{peer_port}"
        self._token = secrets.token_urlsafe(24)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> ApiConfig:
        """How its administrator reaches it, with its certificate verified."""
        return ApiConfig(
            server=self._url, source="the test's control plane", ca=self._ca, token=self._token
        )

    @property
    def kubeconfig(self) -> Path:
        """The same for kubectl; a file since start."""
        return self._directory / "admin.kubeconfig"

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [each.pid for each in (self._etcd, self._server) if each is not None]

    def start(self) -> None:
        """Start both; return when they are ready."""
        self._write_credentials()
        self._etcd = self._spawn(
            "etcd",
            "--data-dir", self._directory / "etcd",
            "--unsafe-no-fsync",
            "--listen-client-urls", self._etcd_url,
            "--advertise-client-urls", self._etcd_url,
            "--listen-peer-urls", self._peer_url,
            "--initial-advertise-peer-urls", self._peer_url,
            "--initial-cluster", f"default={self._peer_url}",
        )  # fmt: skip
        _until_ready(f"{self._etcd_url}/health", self._etcd)
        self.start_server()

    def start_server(self) -> None:
        """Start kube-apiserver, after stop_server on the same port."""
        key = self._service_accounts
        self._server = self._spawn(
            KUBERNETES.called("kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--advertise-address=192.0.2.1",  # loopback is refused, and nobody asks for it
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--cert-dir={self._ca.parent}",
            f"--token-auth-file={self._tokens}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            # Not on by default: the agent has a right for clusters that have it.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--profiling=false",
            *MUTATING_POLICIES,
        )
        _until_ready(f"{self._url}/readyz", self._server)

    def stop_server(self) -> None:
        """Stop kube-apiserver; etcd keeps the objects."""
        _end(self._server)
        self._server = None

    def stop(self) -> None:
        """Stop both."""
        self.stop_server()
        _end(self._etcd)

    def compact(self, revision: int) -> None:
        """Let etcd forget what was before a revision (which is a resource version, too)."""
        request = urllib.request.Request(
            f"{self._etcd_url}/v3/kv/compaction",
            json.dumps({"revision": str(revision), "physical": True}).encode(),
        )
        urllib.request.urlopen(request, timeout=10).close()

    @property
    def _url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def _ca(self) -> Path:
        return self._directory / "certificates" / "apiserver.crt"

    @property
    def _tokens(self) -> Path:
        return self._directory / "tokens.csv"

    @property
    def _service_accounts(self) -> Path:
        return self._directory / "service-accounts.key"

    def _write_credentials(self) -> None:
        """The administrator's token, and the key that signs those of service accounts."""
        self._tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
        subprocess.run(
            ["openssl", "genrsa", "-out", self._service_accounts, "2048"],
            check=True, capture_output=True,
        )  # fmt: skip
        cluster = {"server": self._url, "certificate-authority": str(self._ca)}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
                    "users": [{"name": "admin", "user": {"token": self._token}}],
                }
            )
        )

    def _spawn(self, program: str | Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
        log = self._directory / f"{Path(program).name}.log"
        with log.open("ab") as output:
            return subprocess.Popen([program, *arguments], stdout=output, stderr=output)


def _until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    context = ssl._create_unverified_context()
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2, context=context):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} was not ready after {START_SECONDS:g} s")


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def kubeconfig_of_a_cluster() -> str:
    """The cluster to test against in place of our own control plane, if the user names one."""
    return os.environ.get("KUBECONFIG_E2E", "")
