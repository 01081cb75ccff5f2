"""Why reservations did not help a pod: the reasons of PostFilter, and the event about them.

Source: Koordinator, plugins/reservation plugin.go and error_handler.go.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from koord_scheduler_plugins.reservation.fit import PREFIX
from koord_scheduler_plugins.reservation.matching import NodeDiagnosis

MAX_MESSAGE = 1024  # characters of an event
_CUT = " ..."
_HEAD = re.compile(r"0/[0-9]+ nodes are available: ")
_ITEM = re.compile(r"(?P<count>[0-9]+) Reservation\(s\) ")
_TOTAL = "matched owner total"
_NAME = "exactly matches the requested reservation name"
_NODE_REASON = "for node reason that"


def reasons(
    nodes: Iterable[tuple[NodeDiagnosis, Sequence[str]]], *, required: bool
) -> tuple[str, ...]:
    """Return the reasons for a pod that found no node; none, if it has no reservations.

    nodes: each with the reasons for which the filters rejected it. required: the pod must have a
    reservation.
    """
    every = list(nodes)
    diagnoses = [found for found, _ in every]
    owner_matched = sum(one.owner_matched for one in diagnoses)
    if not owner_matched and not required:
        return ()
    taints: Counter[str] = Counter()
    node_reasons: Counter[str] = Counter()
    for found, rejected in every:
        taints.update(found.tainted)
        others = Counter(one for one in rejected if not one.startswith(PREFIX))
        left = found.left - (len(rejected) - others.total())
        if left > 0:
            node_reasons.update({one: left * times for one, times in others.items()})
    counted = [
        (sum(one.name_matched for one in diagnoses), _NAME),
        (
            sum(one.name_unmatched for one in diagnoses),
            "didn't match the requested reservation name",
        ),
        (sum(one.affinity_unmatched for one in diagnoses), "didn't match affinity rules"),
        (sum(one.unschedulable for one in diagnoses), "is unschedulable"),
        (sum(one.not_exact for one in diagnoses), "is not exact matched"),
        *((taints[one], f"had untolerated taint {one}") for one in sorted(taints)),
        *((node_reasons[one], f"{_NODE_REASON} {one}") for one in sorted(node_reasons)),
    ]
    lines = [f"{count} {PREFIX}{text}" for count, text in counted if count > 0]
    return (*lines, f"{owner_matched} {PREFIX}{_TOTAL}")


def event_message(text: str) -> str | None:
    """Return the message of the event about reservations; None: there is nothing to say.

    text: the message of the attempt that found no node.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    total = None
    ranked: list[tuple[int, str]] = []
    for each in text[head.end() :].replace(". ", ", ").split(","):
        item = each.strip().removesuffix(".")
        match = _ITEM.match(item)
        if match is None:
            continue
        rest = item[match.end() :]
        if rest == _TOTAL:
            total = match["count"]
        else:
            ranked.append((_rank(rest), item))
    if total is None or not ranked:
        return None
    items = ", ".join(item for _, item in sorted(ranked, key=lambda one: one[0]))
    message = f"0/{total} reservations are available: {items}."
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - len(_CUT)] + _CUT
    return message


def _rank(item: str) -> int:
    if item == _NAME:
        return 0
    return 2 if item.startswith(_NODE_REASON) else 1
