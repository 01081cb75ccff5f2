"""The latest answers to the runtime, for /explain: what was adjusted, why, and what was not."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from koord.api.nodemetric import time_text
from koordlet.runtimehooks.adjustments import Adjustment
from koordlet.runtimehooks.injections import NOTHING, Injected
from koordlet.runtimehooks.options import Stage
from koordlet.statesinformer.model import PodMeta

KEPT = 200
AT_LEAST, PER_CONTAINER, AT_MOST = 0.2, 0.05, 3.0  # seconds that a runtime takes to adjust


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer. dry_run: what would have been adjusted; left: why something was not."""

    at: float  # Unix seconds
    stage: Stage
    pod: str
    uid: str
    container: str
    group: str
    adjusted: tuple[Adjustment, ...]
    dry_run: tuple[Adjustment, ...] = ()
    left: tuple[str, ...] = ()
    injected: Injected = NOTHING

    def to_json(self) -> dict[str, object]:
        """Return it as /explain has it."""
        return {
            "at": time_text(self.at),
            "stage": self.stage.value,
            "pod": self.pod,
            "uid": self.uid,
            "container": self.container,
            "cgroup": self.group,
            "adjusted": list(map(_as_json, self.adjusted)),
            "inDryRun": list(map(_as_json, self.dry_run)),
            "left": list(self.left),
            "injected": [one.to_json() for one in self.injected.real],
            "injectedInDryRun": [one.to_json() for one in self.injected.dry_run],
        }


class Answers:
    """Keeps the latest ones, of whatever connection, and until when the runtime acts on them."""

    def __init__(self) -> None:
        self._kept: deque[Answer] = deque(maxlen=KEPT)
        self.ended = False  # nothing is adjusted any more
        self.busy_until = 0.0  # monotonic; until then the runtime may do what it was told

    def told(self, containers: int, now: float) -> None:
        """Note that the runtime is about to adjust so many containers. now is monotonic."""
        if containers:
            takes = min(AT_LEAST + containers * PER_CONTAINER, AT_MOST)
            self.busy_until = max(self.busy_until, now + takes)

    def add(self, answer: Answer) -> None:
        """Keep one."""
        self._kept.append(answer)

    def explain(self, place: str = "") -> list[dict[str, object]]:
        """The answers about a pod (namespace/name, name, UID) or cgroup, latest first; "": all."""
        return [one.to_json() for one in _about(reversed(self._kept), place)]


def pod_name(meta: PodMeta) -> str:
    """Return namespace/name."""
    return f"{meta.pod.namespace}/{meta.pod.name}"


def _about(answers: Iterable[Answer], place: str) -> Iterable[Answer]:
    for one in answers:
        names = (one.pod, one.pod.partition("/")[2], one.uid)
        if not place or place in names or f"{one.group}/".startswith(f"{place}/"):
            yield one


def _as_json(adjustment: Adjustment) -> dict[str, object]:
    resource = adjustment.key.resource
    return {
        "resource": resource.name,
        "unit": resource.unit,
        "value": _plain(adjustment.value),
        "asked": _plain(adjustment.asked),
        "plugins": list(adjustment.owners),
        "reason": adjustment.reason,
        "inputs": dict(adjustment.inputs),
    }


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
