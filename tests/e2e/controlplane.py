"""etcd and Kubernetes' own CRD server, built and started by the tests themselves."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

from programs import CRD_SERVER

from koord.kube.credentials import ApiConfig

START_SECONDS = 60.0


_PROGRAMS = {
    "go": "Go 1.25 or newer (go.dev/dl)",
    "etcd": "etcd (Debian: apt-get install etcd-server)",
}
_OTHERS = {"prometheus": "prometheus (Debian: apt-get install prometheus)"}


def missing(*programs: str) -> str:
    """What this machine lacks of them, by default of the control plane's; "" when nothing."""
    lacking = (name for name in programs or _PROGRAMS if not shutil.which(name))
    return " and ".join({**_PROGRAMS, **_OTHERS}[name] for name in lacking)


class ControlPlane:
    """One etcd and one CRD server on it, both on loopback, with their files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._etcd_port, peer_port, self._port = _free_ports(3)
        self._etcd_url = f"http://127.0.0.1:{self._etcd_port}"
        self._peer_url = f"http://127.0.0.1:{peer_port}"
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> ApiConfig:
        """How to reach it, with its certificate verified."""
        return ApiConfig(
            server=f"https://127.0.0.1:{self._port}",
            source="the test's control plane",
            ca=self._directory / "certificates" / "apiserver.crt",
        )

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [each.pid for each in (self._etcd, self._server) if each is not None]

    def start(self) -> None:
        """Start both; return when they are ready."""
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
        """Start the CRD server, after stop_server on the same port."""
        self._server = self._spawn(
            CRD_SERVER.binary,
            "--etcd-servers", self._etcd_url,
            "--bind-address", "127.0.0.1",
            "--secure-port", str(self._port),
            "--cert-dir", self._directory / "certificates",
            "--kubeconfig", self._own_kubeconfig(),
            "--enable-priority-and-fairness=false",
        )  # fmt: skip
        # It waits for Services, which it needs for conversion webhooks only, in vain.
        ready = f"https://127.0.0.1:{self._port}/readyz?exclude=informer-sync"
        _until_ready(ready, self._server)

    def stop_server(self) -> None:
        """Stop the CRD server; etcd keeps the objects."""
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

    def _own_kubeconfig(self) -> Path:
        """A kubeconfig for the server's own informers. It wants one, even to talk to itself."""
        path = self._directory / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "it",
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "users": [{"name": "it", "user": {}}],
                }
            )
        )
        return path

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
