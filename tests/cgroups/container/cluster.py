"""The daemon in a container, and the API server in the container's network."""

import asyncio
import http.client
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from koord.kube.client import NODE_METRICS, NODES, PODS
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority

from .runc import Container

CTL = (sys.executable, "-m", "koordlet.cli.koordletctl")
PROGRAM = ("-m", "koordlet.cli.koordlet")
NODE, TOKEN = "n1", "the pod's token"
PORTS = {"api": 6443, "daemon": 9316}
TIMEOUT = 180.0  # real seconds, in an emulated machine too


class Cluster:
    """An API server with a node and one pod, and the files by which a pod finds the server."""

    def __init__(self, directory: Path, pod_uid: str) -> None:
        """directory: that of the containers, which has a directory "account"."""
        authority = Authority(directory)
        account = directory / "account"
        (account / "ca.crt").write_bytes(authority.certificate.read_bytes())
        (account / "token").write_text(TOKEN)
        tls = authority.issue("apiserver").server_context()
        self.server = ApiServer(tls=tls, token=TOKEN)
        for resource, item in (
            (NODES, {"metadata": {"name": NODE}, "status": {"capacity": {"cpu": "2"}}}),
            (NODE_METRICS, _node_metric()),
            (PODS, _pod(pod_uid)),
        ):
            self.server.objects.create(resource.collection(), item)

    environment: Mapping[str, str] = {
        "NODE_NAME": NODE,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(PORTS["api"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    async def serve(self, container: Container) -> None:
        """Start a container, with the API server in its network."""
        await asyncio.to_thread(container.create)
        self.server.listener = container.socket()
        self.server.listener.bind(("127.0.0.1", PORTS["api"]))
        await self.server.start()
        await asyncio.to_thread(container.start)

    def usage(self, pod: str) -> dict[str, str] | None:
        """What a pod uses by the status of the node's NodeMetric; None while it is not there."""
        status = self.server.objects.get(NODE_METRICS.collection(), NODE).get("status", {})
        found = (each for each in status.get("podsMetric", ()) if each["name"] == pod)
        return next((each["podUsage"]["resources"] for each in found), None)


class Agent:
    """The daemon in a container, asked from outside."""

    def __init__(
        self, container: Container, *, port: int = PORTS["daemon"], ctl: Sequence[str] = CTL
    ) -> None:
        self.container = container
        self._port = port
        self._ctl = ctl

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP response; status 0 when there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.sock = self.container.socket()
        try:
            connection.sock.settimeout(TIMEOUT)
            connection.sock.connect(("127.0.0.1", self._port))
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as err:
            return 0, str(err)
        finally:
            connection.close()

    def has(self, sample: str) -> bool:
        """Whether a line of /metrics begins with the regular expression."""
        return re.search(f"^{sample}", self.get("/metrics")[1], re.MULTILINE) is not None

    async def shows(self, *samples: str) -> None:
        """Wait until /metrics has a line that begins with each regular expression."""
        for sample in samples:
            await self.until(lambda sample=sample: self.has(sample))

    def lacks(self, *areas: str) -> list[Any]:
        """What is in use and missing, of these areas, by `koordletctl doctor`."""
        found = [each for each in self.ctl("doctor")["findings"] if each["area"] in areas]
        assert found
        return [each for each in found if each["wanted"] and not each["supported"]]

    def ctl(self, *arguments: str) -> Any:
        """What koordletctl answers in the container, as `kubectl exec` runs it."""
        command = (*self._ctl, *arguments, "--output", "json")
        return json.loads(self.container.execute(*command))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of that name."""
        lines = map(json.loads, self.container.output.splitlines())
        return [event for event in lines if event["event"] == name]

    def samples_held(self) -> int:
        """How many samples of the node's CPU the last half hour has; an emulated start is slow."""
        [series] = self.ctl("metrics", "node_cpu_usage", "--window=30m")["series"]
        return int(series["count"])

    async def until(self, condition: Callable[[], Any]) -> None:
        """Ask again and again until the response is true."""
        end = time.monotonic() + TIMEOUT
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < end, f"still not so\n{self.container.output}"
            await asyncio.sleep(0.1)


def _node_metric() -> dict[str, Any]:
    policy = {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 2}
    return {"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": policy}}


def _pod(uid: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": "web", "uid": uid},
        "spec": {"nodeName": NODE, "containers": [{"name": "app"}]},
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [{"name": "app", "containerID": "containerd://c1"}],
        },
    }
