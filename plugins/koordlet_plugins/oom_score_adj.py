"""Gives the processes of containers the OOM score adjustment in their pod's annotations.

Reads two annotations of the pod and the processes in its containers' cgroups; claims oom_score_adj
of each process. There is no claim for containers without an annotation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from koord.api.annotations import json_annotation, place
from koord.api.gojson import INT64, MapOf
from koord.api.pod import Pod
from koord.plugin import InvalidObject
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ContainerMeta,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    Target,
    resources,
)
from koordlet.plugin.pods import (
    PodRoundsPlugin,
    Process,
    ProcessLists,
    by_pid,
    containers_of,
)

NAME = "OOMScoreAdj"
SCORES = "koordinator.sh/oom-score-adj-spec"  # annotation: JSON map of container name to score
SCORE = "koordinator.sh/oom-score-adj"  # annotation: score of the other containers
LOWEST, HIGHEST = -1000, 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_GAUGE = "koordlet_container_oom_score_adj"
_LABELS = ("node", "pod_name", "pod_namespace", "pod_uid", "container_name")


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores in a pod's annotations: -1000 (never killed) to 1000 (killed first)."""

    containers: Mapping[str, int] = field(default_factory=dict)
    others: int | None = None  # None: no claim

    def of(self, container: str) -> int | None:
        return self.containers.get(container, self.others)


def pod_scores(pod: Pod) -> Scores | None:
    """Return the scores in a pod's annotations; None: there are none.

    Raises:
        InvalidObject: one of them is malformed, or a score is out of its range.
    """
    scores: dict[str, int] = {}
    if pod.annotations.get(SCORES):
        scores = cast(dict[str, int], json_annotation(pod, SCORES, MapOf(INT64)))
    text = pod.annotations.get(SCORE, "")
    if not scores and not text:
        return None
    others = _parse(text, place(pod, SCORE)) if text else None
    for name, score in scores.items():
        _check(score, f"{place(pod, SCORES)}.{name}")
    return Scores(scores, others)


def _parse(text: str, where: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidObject(where, wanted="a whole number", found=text)
    return _check(int(text), where)


def _check(score: int, where: str) -> int:
    if not LOWEST <= score <= HIGHEST:
        raise InvalidObject(where, wanted=f"{LOWEST} to {HIGHEST}", found=score)
    return score


@dataclass(frozen=True, slots=True)
class ScoredContainer:
    """A container with a score in its pod's annotations."""

    meta: PodMeta
    container: ContainerMeta
    score: int


class OOMScoreAdj(PodRoundsPlugin[Scores]):
    """Keeps the OOM scores of processes; those that a process starts inherit its own."""

    gates = (NAME,)
    may_claim = (ClaimScope(resources.OOM_SCORE_ADJ, Level.PROCESS),)
    before_start = True

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._lists = ProcessLists(self)
        self._processes: dict[str, frozenset[Process]] = {}  # of the latest round, by cgroup
        self._claimed: dict[str, tuple[Claim, ...]] = {}  # by the pod's UID
        self._gauge = self.metrics.upstream_gauge(
            _GAUGE, "OOM score adjustment that the container's processes have.", _LABELS
        )

    def pod_settings(self, pod: Pod) -> Scores | None:
        return pod_scores(pod)

    def begin(self) -> None:
        super().begin()
        self._claimed.clear()
        self._lists.begin()

    async def reconcile(self) -> None:
        """List the processes of all containers with a score, and claim it for them."""
        wanted = list(self._wanted())
        self._processes = await self._lists.of([one.container.cgroup for one in wanted])
        claims: dict[str, list[Claim]] = {}
        for one in wanted:
            claims.setdefault(one.meta.uid, []).extend(self._claims_on(one))
        for uid in self._claimed.keys() - claims.keys():
            del self._claimed[uid]
            await self.withdraw_all(scope=uid)
        for uid, found in claims.items():
            if self._claimed.get(uid) != tuple(found):
                self._claimed[uid] = tuple(found)
                await self.apply_claims(found, scope=uid)
        self._show(wanted)

    def _wanted(self) -> Iterator[ScoredContainer]:
        pods = list(self.pods())
        self.settings.keep(meta.uid for meta in pods)
        for meta in pods:
            scores = self.settings.of(meta.pod)
            for container in containers_of(meta) if scores else ():
                score = scores.of(container.name) if scores else None
                if score is not None:
                    yield ScoredContainer(meta, container, score)

    def _claims_on(self, one: ScoredContainer) -> Iterator[Claim]:
        processes = self._processes.get(one.container.cgroup, frozenset())
        for process in by_pid(processes):
            yield Claim(
                target=Target.of_process(one.meta, process.pid, process.start_time),
                resource=resources.OOM_SCORE_ADJ,
                value=one.score,
                reason=f"OOM score that the pod asks for in container {one.container.name}",
            )

    def _show(self, wanted: Iterable[ScoredContainer]) -> None:
        node = self.states.node()
        shown: dict[tuple[str, ...], float] = {}
        for one in wanted if node else ():
            pod = one.meta.pod
            if node and self._processes.get(one.container.cgroup):
                labels = (node.name, pod.name, pod.namespace, pod.uid, one.container.name)
                shown[labels] = float(one.score)
        self._gauge.replace(shown)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, OOMScoreAdj())
