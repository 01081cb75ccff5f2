"""The first process in the cluster's machine: starts its programs, and again what has ended.

`python -m tests.support.real_cluster.supervisor DIRECTORY NODES [IMAGE.tar...] [-- COMMAND...]`.
With a command it ends with the command's status; else it says how to come in, and runs until it
is killed.
"""

import itertools
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.programs import CRI_CLIENT, KUBERNETES
from tests.support.real_cluster import services
from tests.support.real_cluster.access import ADMIN, NODE, NODE_IP, SERVICE_IP, STAND_IN, Access
from tests.support.real_cluster.services import RUNTIME, Service
from tests.support.real_runtime.containerd_node import write_pause_image

START_SECONDS = 180.0  # of one program, on a busy machine
_STAND_INS = "tests.support.real_cluster.stand_in_nodes"
_AGAIN = 0.5  # seconds before what has ended is started again


class Supervisor:
    """Runs services, each in a process of its own, as systemd or a kubelet would."""

    def __init__(self, directory: Path) -> None:
        self._logs, self._pids = directory / "logs", directory / "pids"
        for each in (self._logs, self._pids):
            each.mkdir()

    def start(self, service: Service) -> None:
        """Start it and return when it is ready; from then on it is started again when it ends."""
        process = self._spawn(service)
        until = time.monotonic() + START_SECONDS
        while not _is_ready(service.ready):
            if process.poll() is not None or time.monotonic() > until:
                log = (self._logs / f"{service.name}.log").read_text(errors="replace")
                raise RuntimeError(f"{service.name} was not ready: {log[-3000:]}")
            time.sleep(0.1)
        threading.Thread(target=self._keep, args=(service, process), daemon=True).start()

    def _spawn(self, service: Service) -> "subprocess.Popen[bytes]":
        with (self._logs / f"{service.name}.log").open("ab") as log:
            process = subprocess.Popen(
                service.command, stdout=log, stderr=log, env={**os.environ, **service.environ}
            )
        (self._pids / service.name).write_text(str(process.pid))
        return process

    def _keep(self, service: Service, process: "subprocess.Popen[bytes]") -> None:
        while True:
            process.wait()
            time.sleep(_AGAIN)
            process = self._spawn(service)


def _is_ready(where: str) -> bool:
    """Whether an address answers, or a socket is there; true of a service that has neither."""
    if not where.startswith("http"):
        return not where or Path(where).exists()
    try:
        with urllib.request.urlopen(where, timeout=2, context=ssl._create_unverified_context()):
            return True
    except OSError:
        return False


def run_cluster(
    directory: Path, nodes: int, images: Sequence[Path], say: Callable[[str], None]
) -> None:
    """Start all, in the machine that we are the first process of."""
    for address in (SERVICE_IP, NODE_IP):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    access = Access(directory / "access")
    supervisor = Supervisor(directory)
    began = time.monotonic()
    for service in (
        services.own_stat(directory),
        services.containerd(directory),
        services.etcd(directory),
        services.api_server(directory, access),
        services.controllers(access),
        services.scheduler(access),
    ):
        supervisor.start(service)
        say(f"{service.name} is ready ({time.monotonic() - began:.0f} s)")
    pause = directory / "pause.tar"
    write_pause_image(pause)
    for tar in (pause, *images):
        import_image(tar)
        say(f"{tar.name} is imported ({time.monotonic() - began:.0f} s)")
    supervisor.start(services.kubelet(directory, access))
    if nodes:
        stand_in = (
            sys.executable,
            "-m",
            "tests.support.real_cluster.stand_in_nodes",
            access.kubeconfig(STAND_IN),
            str(nodes),
        )
        supervisor.start(Service("stand-in", stand_in))
    _until_nodes_are_ready(access.kubeconfig(ADMIN), nodes + 1)
    say(f"{nodes + 1} nodes are ready ({time.monotonic() - began:.0f} s)")


def import_image(tar: Path) -> None:
    """Have the node's container runtime load it."""
    subprocess.run(
        [CRI_CLIENT.binary, f"-socket={RUNTIME}", "-import", tar], check=True, timeout=START_SECONDS
    )


def _until_nodes_are_ready(kubeconfig: Path, number: int) -> None:
    until = time.monotonic() + START_SECONDS
    command = [KUBERNETES.called("kubectl"), f"--kubeconfig={kubeconfig}", "get", "nodes"]
    while time.monotonic() < until:
        found = subprocess.run(command, capture_output=True, text=True).stdout
        if found.count(" Ready ") == number:
            return
        time.sleep(0.2)
    raise TimeoutError(f"the nodes were not ready:\n{found}")


def main(arguments: Sequence[str]) -> int:
    """Return the status of the command."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # and all others end with the first
    directory, nodes, *rest = itertools.takewhile(lambda each: each != "--", arguments)
    command = list(itertools.dropwhile(lambda each: each != "--", arguments))[1:]
    say = print if not command else lambda line: print(line, file=sys.stderr, flush=True)
    run_cluster(Path(directory), int(nodes), [Path(each) for each in rest], say)
    kubeconfig = Path(directory, "access", "admin.kubeconfig")
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    kubectl = KUBERNETES.called("kubectl")
    if command:
        return subprocess.run(command, env={**environ, "CLUSTER": directory}).returncode
    print(f"kubeconfig: {kubeconfig}, whose server is in the machine of node {NODE}", flush=True)
    subprocess.run([kubectl, "get", "nodes"], env=environ, check=True)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
