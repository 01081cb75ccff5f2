"""Conditions of quotas: what is wrong with an object, and whether it has too much or too little.

The kind has no field for them, and one that a definition does not name is dropped without a word.
So they are an annotation, as Koordinator's amounts are.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from koord.api.elasticquota import ElasticQuota
from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.plugin import InvalidObject
from koord_scheduler_plugins.elastic_quota.preemption import over_use
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

MAX_MESSAGE = 1000  # characters


class ConditionType(StrEnum):
    """A thing that is to be known of a quota. Where it does not hold there is no condition."""

    INVALID = "Invalid"  # of the object, or of its place in the tree
    OVERUSED = "Overused"  # its pods use more than its limit
    UNDERSERVED = "Underserved"  # they lack some of its min while others are overused


@dataclass(frozen=True, slots=True)
class QuotaCondition:
    """A condition that holds."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class WrittenConditions:
    """The conditions that an object says, and since when."""

    text: str | None = None  # of the annotation; None: it has none
    since: Mapping[QuotaCondition, str] | None = None  # None: it cannot be read


def read_conditions(text: object) -> WrittenConditions:
    """Return the conditions of an annotation."""
    if not isinstance(text, str):
        return WrittenConditions()
    found = {}
    try:
        listed = parse_json(text, "conditions")
        for item in listed if isinstance(listed, list) else [listed]:
            one = Fields(item, "conditions")
            key = QuotaCondition(one.text("type"), one.text("message"))
            found[key] = one.text("lastTransitionTime")
    except InvalidObject:
        return WrittenConditions(text)
    return WrittenConditions(text, found)


def written_text(
    before: WrittenConditions, found: Sequence[QuotaCondition], now: float
) -> str | None:
    """Return the annotation for conditions; None: there are none. now: Unix seconds.

    It stays as it is while the same conditions hold; the time of one is when it began to hold.
    """
    if before.since is not None and list(before.since) == list(found):
        return before.text if found else None
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = {one.type: time for one, time in (before.since or {}).items()}
    listed = [
        {
            "type": one.type,
            "status": "True",
            "message": one.message,
            "lastTransitionTime": since.get(one.type) or moment,
        }
        for one in found
    ]
    return json.dumps(listed, separators=(",", ":")) if listed else None


def overused_resources(state: QuotaState) -> frozenset[str]:
    """Return the resources of which some quota of a tree uses more than its limit."""
    found: set[str] = set()
    for quota in state.tree.quotas:
        found.update(over_use(state.used(quota.name), state.limit(quota.name)))
    return frozenset(found)


def conditions_of(
    state: QuotaState | None,
    quota: ElasticQuota | None,
    problems: Iterable[str],
    overused: frozenset[str] = frozenset(),
) -> list[QuotaCondition]:
    """Return the conditions of an object that hold.

    state, quota: None if the object does not count. overused: see overused_resources.
    """
    found, text = [], "; ".join(problems)
    if text:
        found.append(QuotaCondition(ConditionType.INVALID, text[:MAX_MESSAGE]))
    if state is None or quota is None:
        return found
    used = state.used(quota.name)
    over = over_use(used, state.limit(quota.name))
    if over:
        text = f"its pods use more than it may: {', '.join(over)}"
        found.append(QuotaCondition(ConditionType.OVERUSED, text[:MAX_MESSAGE]))
    request = state.request(quota.name)
    short = [
        key
        for key, low in sorted(quota.min.items())
        if key in overused and used.get(key, 0) < min(low, request.get(key, 0))
    ]
    if short and quota.name in state.tree.places:
        text = f"its pods lack some of its min, and other quotas use too much: {', '.join(short)}"
        found.append(QuotaCondition(ConditionType.UNDERSERVED, text[:MAX_MESSAGE]))
    return found
