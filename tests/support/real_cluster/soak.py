"""`make cluster-soak`: kill -9 at random in a busy cluster, checked from outside.

`python -m tests.support.real_cluster.soak [--seconds NUMBER] [--seed NUMBER]`, in the cluster's
machine. Killed are kube-apiserver, etcd (its data stays), the kubelet, containerd and the four
daemons. soak_watch checks what must hold meanwhile. Ends with 1 if something did not. An API server
without MutatingAdmissionPolicy has no koord-manager.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from koord.api.annotations import USAGE_THRESHOLDS
from koord.api.elasticquota import NAME
from koord.api.quantity import Quantity
from tests.support.programs import MINOR
from tests.support.real_apiserver.control_plane import MUTATING_MINOR
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.background import Background
from tests.support.real_cluster.client import (
    BEST_EFFORT,
    SHOP,
    SYSTEM,
    Cluster,
    Object,
    budget,
    deployment,
    pod,
    quota,
)
from tests.support.real_cluster.colocation import batch_pod, begin_colocation, end_colocation
from tests.support.real_cluster.installation import (
    CONFIG,
    INTERVAL,
    MANAGER,
    POD_MONITOR,
    WORKLOADS,
    Installation,
    Manager,
    slo_config,
)
from tests.support.real_cluster.soak_faults import Faults, say
from tests.support.real_cluster.soak_groups import (
    COMPONENTS,
    OF_GRIDS,
    Gangs,
    GroupChecks,
    quotas,
    scheduler_config,
)
from tests.support.real_cluster.soak_watch import Watch, twice, written_by_others
from tests.support.real_cluster.stand_in_nodes import ROOM
from tests.support.real_cluster.traces import differences, kernel_values, to_restore

# koord-descheduler moves few pods of one workload at a time, so there are some.
GRIDS = tuple(f"grid-{number}" for number in range(1, 7))
COLOCATES = MINOR >= MUTATING_MINOR
# Deployments, and between how many replicas they are scaled. At most, the grids have more pods than
# fit at once, and so have the batch pods; mostly there is room for what leaves a hot node.
SCALES = {
    **dict.fromkeys(GRIDS, (2, 8)), "front": (1, 3), "batch": (1, 10 if COLOCATES else 3)
}  # fmt: skip
IN_THE_END = {**dict.fromkeys(GRIDS, 2), "front": 1, "batch": 1}
HOSTNAME = "kubernetes.io/hostname"
HOT = 50.0  # percent of CPU
HOT_FOR = 16  # changes of the load during which the same node is hot, and the strategy the same
# Percent of a node's CPU that prod and batch pods may use together: much, or hardly any.
STRATEGIES = (100, 60)
_SCALING = 0.5  # seconds from one change of the load to the next
_METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
_MESSAGE_POLICY = "/spec/template/spec/containers/0/terminationMessagePolicy"
_SETTLED = 300.0  # seconds for all pods to run once nothing is killed any more


def affinity() -> Object:
    """Return what keeps a pod off the real node."""
    others = {"key": HOSTNAME, "operator": "NotIn", "values": [NODE]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [others]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def workloads() -> Iterator[Object]:
    """Yield Deployments for nodes without a kubelet; on the real one with and without requests."""
    grids = [pod("", app, cpu="700m", affinity=affinity()) for app in GRIDS]
    for made in grids[: len(GRIDS) // 2]:
        made["metadata"]["labels"][NAME] = OF_GRIDS
    here = {"nodeSelector": {HOSTNAME: NODE}}
    front = pod("", "front", cpu="100m", **here)
    made_of = batch_pod if COLOCATES else partial(pod, "")
    batch = made_of("batch", busy=os.cpu_count() or 1, **here)
    if not COLOCATES:
        batch["metadata"]["labels"]["koordinator.sh/qosClass"] = "BE"
    for made in (*grids, front, batch):
        app = made["metadata"]["labels"]["app.kubernetes.io/name"]
        yield deployment(app, SCALES[app][0], made)
    # More than the scaling makes unavailable, or the budgets would refuse every eviction.
    for app in GRIDS:
        yield budget(app, maxUnavailable=SCALES[app][1] // 2)


class Load(Background):
    """Scales Deployments, switches the NodeSLOs and reports for nodes, until it is stopped."""

    def __init__(self, api: Api, chance: random.Random) -> None:
        super().__init__()
        self._api = api
        self._chance = chance
        self._gangs = Gangs(api, random.Random(chance.random()), affinity())
        self._beat, self._turn = 0, 0.0  # changes so far; which node is hot, from 0 to 1
        self._reclaim = STRATEGIES[0]

    def _run(self) -> None:
        while not self._stop.wait(_SCALING):
            app = self._chance.choice(tuple(SCALES))
            self.scale(app, self._chance.randint(*SCALES[app]))
            if self._chance.random() < 0.2:
                self.squeeze(on=self._chance.random() < 0.7, reclaim=self._reclaim)
            self._gangs.turn()
            if not self._beat % HOT_FOR:
                self._turn = self._chance.random()
                self._reclaim = self._chance.choice(STRATEGIES)
            self._beat += 1
            self._report(self._turn)

    def scale(self, app: str, replicas: int) -> bool:
        """Scale a Deployment; return whether the API server has taken it."""
        path = f"/apis/apps/v1/namespaces/{SHOP}/deployments/{app}"
        done = self._api.ask(path, "PATCH", {"spec": {"replicas": replicas}})
        return "code" not in (done or {"code": 0})

    def squeeze(self, *, on: bool, reclaim: int = STRATEGIES[0]) -> bool:
        """Have the NodeSLOs limit best-effort pods, or not, and nodes offer that much; as scale."""
        config = slo_config(squeeze=on, reclaim=reclaim)
        path = "/api/v1/namespaces/koordinator-system/configmaps/" + config["metadata"]["name"]
        done = self._api.ask(path, "PATCH", {"data": config["data"]})
        return "code" not in (done or {"code": 0})

    def _report(self, turn: float) -> None:
        """Report for the nodes without a kubelet: one is hot, the others have little to do."""
        pods = self._api.items(f"/api/v1/namespaces/{SHOP}/pods") or []
        on: dict[str, list[Object]] = {}
        for each in pods:
            if each["spec"].get("nodeName", NODE) != NODE:
                on.setdefault(each["spec"]["nodeName"], []).append(each)
        busy = sorted(node for node, here in on.items() if len(here) > 2)
        hot = busy[int(turn * len(busy))] if busy else ""
        for each in self._api.items("/api/v1/nodes") or []:
            if (name := each["metadata"]["name"]) != NODE:
                self._write_report(name, on.get(name, []), is_hot=name == hot)

    def _write_report(self, node: str, pods: Sequence[Object], *, is_hot: bool) -> None:
        used = Quantity.parse(ROOM["cpu"]).milli * 9 // 10 if is_hot else 10
        each_uses = used // max(len(pods), 1)
        status = {
            "updateTime": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "nodeMetric": {"nodeUsage": _usage(used), "systemUsage": _usage(0)},
            "podsMetric": [
                {
                    "name": one["metadata"]["name"],
                    "namespace": SHOP,
                    "podUsage": _usage(each_uses),
                }
                for one in pods
            ],
        }
        path = f"{_METRICS}/{node}"
        if (self._api.ask(path) or {}).get("code") == 404:
            policy = {"reportIntervalSeconds": INTERVAL}
            made = {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": node},
                "spec": {"metricCollectPolicy": policy},
            }
            self._api.ask(_METRICS, "POST", made)
        self._api.ask(f"{path}/status", "PATCH", {"status": status})


def _usage(cpu: int) -> Object:
    return {"resources": {"cpu": f"{cpu}m", "memory": "100Mi"}}


@contextmanager
def installed(cluster: Cluster) -> Iterator[Installation]:
    """Install the daemons, which act, and the batch pods' profile; afterwards all are gone."""
    for name in (SHOP, "koordinator-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.apply(slo_config(squeeze=True), POD_MONITOR)
    cluster.kubectl("wait", "--for=condition=Established", "crd", POD_MONITOR["metadata"]["name"])
    # The load of the machine's other work keeps no pod away.
    off = json.dumps({"usageThresholds": {"cpu": 0, "memory": 0}})
    cluster.kubectl("annotate", "nodes", "--all", f"{USAGE_THRESHOLDS}={off}")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        installation = Installation(
            cluster, Path(directory, "daemons"), COMPONENTS, [scheduler_config()]
        )
        installation.apply(high=HOT)
        _keep_last_logs(cluster, SYSTEM, *WORKLOADS)
        cluster.until(cluster.report, "the agent has reported")
        if COLOCATES:
            manager = Manager(cluster, Path(directory, "manager"))
            manager.apply()
            stack.callback(manager.delete)
            _keep_last_logs(cluster, CONFIG, MANAGER)
            begin_colocation(cluster)
            stack.callback(end_colocation, cluster)
        yield installation
        cluster.kubectl("delete", "-k", installation.directory, "--ignore-not-found")
        cluster.until(lambda: not cluster.items("pods", "-n", SYSTEM), "the daemons are gone")


def _keep_last_logs(cluster: Cluster, namespace: str, *workloads: str) -> None:
    """Make pods report what a container logged before it failed, also when its log is gone."""
    policy = {"op": "add", "path": _MESSAGE_POLICY, "value": "FallbackToLogsOnError"}
    for each in workloads:
        cluster.kubectl("-n", namespace, "patch", each, "--type=json", "-p", json.dumps([policy]))
    cluster.rolled_out(*workloads, namespace=namespace)


def settle(cluster: Cluster, api: Api, load: Load, end: datetime) -> Iterator[str]:
    """Yield what is not as it must be after the last fault, in time."""
    fresh = end.timestamp() + 2 * INTERVAL

    def reported() -> bool:
        found = (api.ask(f"{_METRICS}/{NODE}") or {}).get("status", {}).get("updateTime")
        return bool(found) and datetime.fromisoformat(found) > end

    while not reported():
        if time.time() > fresh:
            yield f"no report within {2 * INTERVAL} s after the last fault"
            break
        time.sleep(0.5)
    for app, replicas in IN_THE_END.items():
        cluster.until(lambda a=app, r=replicas: load.scale(a, r), "the API server answers")
    cluster.until(lambda: load.squeeze(on=True), "the API server answers")
    until = time.monotonic() + _SETTLED
    while late := list(_late(api)):
        if time.monotonic() > until:
            yield from late
            break
        time.sleep(1)
    cluster.until(lambda: quota() > 0, "best-effort pods are squeezed")


def _late(api: Api) -> Iterator[str]:
    """Yield the workloads whose pods are not all ready."""
    kinds = ("deployments", SHOP), ("deployments", SYSTEM), ("daemonsets", SYSTEM)
    for kind, namespace in (*kinds, ("deployments", CONFIG)):
        listed = api.items(f"/apis/apps/v1/namespaces/{namespace}/{kind}")
        if listed is None:
            yield f"no {kind} can be listed"
        for each in listed or ():
            status = each["status"]
            wanted = status.get("desiredNumberScheduled", each["spec"].get("replicas"))
            ready = status.get("numberReady", status.get("readyReplicas", 0))
            if ready != wanted:
                yield f"{each['metadata']['name']} has {ready} of {wanted} pods ready"


def kernel_values_left(cluster: Cluster, before: dict[str, str]) -> list[str]:
    """Return what the agent has not restored; first while best-effort pods still run."""
    wrong = [f"{BEST_EFFORT} still has the quota {quota()}"] if quota() != -1 else []
    wrong += [f"koordletctl restore still finds {each}" for each in to_restore()]
    kinds = "deployments,replicasets,pods,poddisruptionbudgets"
    cluster.kubectl("-n", SHOP, "delete", kinds, "--all", "--wait=true")
    end = time.monotonic() + 60  # the kubelet needs a moment after the last pod
    while (left := differences(before, kernel_values())) and time.monotonic() < end:
        time.sleep(1)
    return wrong + left


def soak(cluster: Cluster, seconds: float, seed: int) -> list[str]:
    """Return what was wrong."""
    api, began = Api(cluster.directory), time.monotonic()
    before = dict(kernel_values())
    with installed(cluster):
        faults = Faults(cluster.directory, random.Random(seed))
        load = Load(api, random.Random(seed + 1))
        cluster.apply(*quotas(), *workloads())
        say(f"installed; {seconds:g} s of faults, seed {seed}", began)
        end = time.monotonic() + seconds
        groups = GroupChecks()
        with Watch(api, groups.wrong) as watch:
            with load:
                while time.monotonic() < end:
                    time.sleep(faults.wait())
                    if name := faults.kill():
                        say(f"kill -9 {name}", began)
            wrong = list(settle(cluster, api, load, datetime.now(UTC)))
            say("settled", began)
        wrong += watch.wrong
    wrong += kernel_values_left(cluster, before)
    for resource, what in (("eviction", "evicted"), ("binding", "bound")):
        number, again = twice(cluster.directory, resource)
        say(f"{number} pods were {what}", began)
        wrong += [f"{name} was {what} more than once" for name in again]
    wrong += written_by_others(cluster.directory)
    killed = ", ".join(f"{name} {times}" for name, times in sorted(faults.done.items()))
    say(f"killed: {killed}; {watch.looks} looks at {watch.bound} bound pods", began)
    say(
        f"{watch.batch} batch pods came to nodes, which changed offers {watch.changes} times", began
    )
    say(f"{len(groups.placed)} gangs were placed", began)
    return wrong


def main() -> int:
    """Return 1 if something was wrong, which is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    wrong = soak(Cluster(Path(os.environ["CLUSTER"])), options.seconds, options.seed)
    for each in wrong:
        print(f"WRONG: {each}", flush=True)
    print(f"seed {options.seed}: {len(wrong)} faults found", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
