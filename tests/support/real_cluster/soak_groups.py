"""Gangs and quotas of `make cluster-soak`: what it makes of them, and what must hold meanwhile.

A quota never has more pods on nodes than its max allows, and a gang that has begun to be placed
is whole soon, whichever program is killed.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from koord.api.elasticquota import API_VERSION, KIND, NAME
from koord.api.podgroup import GROUP_LABEL
from koord.api.quantity import Quantity
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.client import SHOP, Object, pod
from tests.support.real_cluster.installation import config_map, shipped_config

COMPONENTS = "scheduler/crds", "scheduler/gangs", "scheduler/quotas"
OF_GRIDS, OF_GANGS = "soak-grids", "soak-gangs"
LIMITS = {OF_GRIDS: "5", OF_GANGS: "3"}  # cores
MEMBERS, MOST = 3, 4  # pods of a gang, gangs
WAIT = 20  # seconds that members wait for the others on their nodes
HALF_PLACED = WAIT + 100.0  # seconds; a replica takes over in between
_APIS = f"/apis/{API_VERSION}/namespaces/{SHOP}"
POD_GROUPS, QUOTAS, PODS = (
    f"{_APIS}/podgroups",
    f"{_APIS}/elasticquotas",
    f"/api/v1/namespaces/{SHOP}/pods",
)
_HAPPENS = 0.3  # share of the turns in which a gang comes or goes


def scheduler_config() -> Object:
    """Return the ConfigMap of koord-scheduler that shipped, with gangs and quotas."""
    config = shipped_config("scheduler")
    enabled = config["profiles"][0]["plugins"]["multiPoint"]["enabled"]
    enabled += [{"name": "Coscheduling"}, {"name": "ElasticQuota"}]
    return config_map("koord-scheduler", config)


def quotas() -> Iterator[Object]:
    """Yield the ElasticQuotas."""
    for name, cpu in LIMITS.items():
        yield {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": SHOP},
            "spec": {"min": {"cpu": "1"}, "max": {"cpu": cpu}},
        }


class Gangs:
    """Gangs that come and go."""

    def __init__(self, api: Api, chance: random.Random, affinity: Object) -> None:
        self._api = api
        self._chance = chance
        self._affinity = affinity
        self._made = 0

    def turn(self) -> None:
        """Make a gang, or delete one, or neither. The API server may be away, at any moment."""
        there = self._api.items(POD_GROUPS)
        if there is None or self._chance.random() > _HAPPENS:
            return
        if len(there) < MOST and self._chance.random() < 0.6:
            self._made += 1
            self._make(f"gang-{self._made}")
        elif there:
            self._delete(self._chance.choice(there)["metadata"]["name"])

    def _make(self, name: str) -> None:
        group = {
            "apiVersion": API_VERSION,
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": MEMBERS, "scheduleTimeoutSeconds": WAIT},
        }
        self._api.ask(POD_GROUPS, "POST", group)
        for number in range(MEMBERS):
            made = pod(f"{name}-{number}", "gangs", cpu="500m", affinity=self._affinity)
            made["metadata"]["labels"] |= {GROUP_LABEL: name, NAME: OF_GANGS}
            self._api.ask(PODS, "POST", made)

    def _delete(self, name: str) -> None:
        self._api.ask(f"{POD_GROUPS}/{name}", "DELETE")
        for number in range(MEMBERS):
            self._api.ask(f"{PODS}/{name}-{number}", "DELETE")


class GroupChecks:
    """What must hold of quotas and gangs, look by look."""

    def __init__(self) -> None:
        self.placed: set[str] = set()  # gangs that were whole at some moment
        self._began: dict[str, float] = {}  # since when gangs are half-placed, in seconds

    def wrong(self, pods: Iterable[Object], now: float | None = None) -> Iterator[str]:
        """Yield what does not hold. now: monotonic seconds."""
        yield from beyond_quota(pods)
        yield from self._half_placed(pods, time.monotonic() if now is None else now)

    def _half_placed(self, pods: Iterable[Object], now: float) -> Iterator[str]:
        """Yield the gangs of which some members have waited for too long after others were bound.

        Not those of which members are lacking: they are being made, or deleted.
        """
        there: dict[str, list[bool]] = {}
        for each in pods:
            gang = _label(each, GROUP_LABEL)
            if gang and "deletionTimestamp" not in each["metadata"]:
                there.setdefault(gang, []).append(_is_placed(each))
        half = {
            gang: sum(placed)
            for gang, placed in there.items()
            if any(placed) and not all(placed) and len(placed) >= MEMBERS
        }
        self.placed |= {
            gang for gang, placed in there.items() if all(placed) and len(placed) >= MEMBERS
        }
        self._began = {gang: self._began.get(gang, now) for gang in half}
        for gang, count in half.items():
            if now - self._began[gang] > HALF_PLACED:
                yield f"gang {gang} has {count} of {MEMBERS} members on nodes, and does not go on"


def beyond_quota(pods: Iterable[Object]) -> Iterator[str]:
    """Yield the quotas whose pods on nodes request more than its max, which never changes."""
    used: Counter[str] = Counter()
    for each in pods:
        if _is_placed(each):
            used[_label(each, NAME)] += _cpu(each)
    for name, limit in LIMITS.items():
        most = Quantity.parse(limit).milli
        if used[name] > most:
            yield f"pods of quota {name} request {used[name]} of {most} thousandths of cpu"


def _is_placed(pod: Object) -> bool:
    finished = pod["status"].get("phase") in ("Succeeded", "Failed")
    return bool(pod["spec"].get("nodeName")) and not finished


def _label(pod: Object, key: str) -> str:
    labels: dict[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(key, "")


def _cpu(pod: Object) -> int:
    requests: Iterable[dict[str, Any]] = (
        each.get("resources", {}).get("requests", {}) for each in pod["spec"]["containers"]
    )
    return sum(Quantity.parse(each.get("cpu", "0")).milli for each in requests)
