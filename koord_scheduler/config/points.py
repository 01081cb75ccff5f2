"""The extension points of a profile."""

from enum import StrEnum


class Point(StrEnum):
    """An extension point, as profiles name it."""

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"

    @property
    def label(self) -> str:
        """As in metrics and messages: "PreFilter"."""
        return _LABELS[self]


_LABELS = {point: point.value[0].upper() + point.value[1:] for point in Point}
