"""CPU normalization: the ratio of a node's CPU speed to the speed that the cluster counts on.

Source: Koordinator, apis/extension (GetCPUNormalizationRatio).
"""

import math
from collections.abc import Mapping

from koord.util import gofloat
from koord.util.errors import InvalidObject

NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"  # annotation of a Node
NOTICEABLE = 0.01  # smaller changes of the ratio are none


def normalization_ratio(annotations: Mapping[str, str]) -> float | None:
    """Return the ratio in a node's annotations; None: CPUs are not normalized.

    Raises:
        InvalidObject: it is no positive number.
    """
    text = annotations.get(NORMALIZATION_RATIO)
    if text is None:
        return None
    try:
        ratio = gofloat.parse(text)
    except ValueError:
        ratio = math.nan
    if not 0 < ratio < math.inf:
        where = f"node: {NORMALIZATION_RATIO}"
        raise InvalidObject(where, wanted='a positive number like "1.25"', found=text)
    return ratio


def noticeable(ratio: float | None, previous: float | None) -> float | None:
    """Return the ratio in force: the previous one while the change is too small to matter."""
    if ratio is None or previous is None or abs(ratio - previous) >= NOTICEABLE:
        return ratio
    return previous
