"""One measured value on its way from a collector into the metric cache."""

from typing import NamedTuple

from koordlet.metriccache.kinds import AnyKind


class Sample(NamedTuple):
    """A value of one series; the time is that of the tick it belongs to.

    value is in kind.unit and finite; what could not be measured is not a sample.
    key holds one value per kind.properties, in that order.
    """

    kind: AnyKind
    value: float
    key: tuple[str, ...] = ()
