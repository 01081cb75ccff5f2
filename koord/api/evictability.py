"""What a pod's labels and annotations say about being evicted.

Source: Koordinator, apis/extension and pkg/koordlet/qosmanager/helpers.
"""

import re

from koord.api.jsonrules import parse_json
from koord.api.pod import Pod
from koord.util.errors import InvalidObject

EVICTION_ENABLED = "koordinator.sh/eviction-enabled"  # label
EVICTION_POLICY = "koordinator.sh/eviction-policy"  # annotation: list of features as JSON
EVICTION_PRIORITY = "koordinator.sh/eviction-priority"  # annotation: whole number of 32 bits
PRIORITY = "koordinator.sh/priority"  # label: whole number, the order within a priority class

_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INT32, _INT64 = 2**31, 2**63


def allows(pod: Pod, feature: str) -> bool:
    """Whether the pod's policy lets this feature evict it; without a policy every one may.

    A policy that is no list of names, or an empty one, allows nothing.
    """
    text = pod.annotations.get(EVICTION_POLICY)
    if text is None:
        return True
    try:
        features = parse_json(text, EVICTION_POLICY)
    except InvalidObject:
        return False
    return isinstance(features, list) and all(map(_is_text, features)) and feature in features


def is_enabled(pod: Pod) -> bool:
    """Whether the pod's label offers it for eviction."""
    return pod.labels.get(EVICTION_ENABLED) == "true"


def eviction_priority(pod: Pod) -> int:
    """Return the rank that the annotation gives: lower is evicted first. 0 without a valid one."""
    found = _whole_number(pod.annotations.get(EVICTION_PRIORITY, ""), _INT32)
    return 0 if found is None else found


def label_priority(pod: Pod) -> int:
    """Return the number of the priority label, or else the pod's priority."""
    found = _whole_number(pod.labels.get(PRIORITY, ""), _INT64)
    return pod.effective_priority if found is None else found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _whole_number(text: str, bound: int) -> int | None:
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if -bound <= number < bound else None
