"""The CPU normalization ratio of this node, as plugins use it."""

from koord.util.errors import InvalidObject
from koordlet.plugin.rejections import Rejections
from koordlet.plugin.states import States
from koordlet.rules.normalization import normalization_ratio, noticeable

_KEY = "node cpu normalization"


class NodeRatio:
    """Follows the node's annotation; one that cannot be used, and a tiny change, change nothing."""

    def __init__(self, states: States, rejections: Rejections) -> None:
        self._states = states
        self._rejections = rejections
        self._ratio: float | None = None

    def now(self) -> float | None:
        """Return how many times faster the CPUs are than counted on; None: not normalized."""
        node = self._states.node()
        try:
            found = normalization_ratio(node.annotations) if node else None
        except InvalidObject as err:
            self._rejections.reject(_KEY, err)
            return self._ratio
        self._rejections.accept(_KEY)
        self._ratio = noticeable(found, self._ratio)
        return self._ratio
