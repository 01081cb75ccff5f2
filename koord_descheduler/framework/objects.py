"""Pods and nodes, as far as the framework looks at them; plugins may be given more."""

from collections.abc import Callable, Mapping
from typing import Protocol


class Pod(Protocol):
    """A pod of the cluster. Immutable."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def node(self) -> str:
        """The name of its node; empty: it is bound to none."""

    @property
    def finished(self) -> bool:
        """Whether its containers have ended for good: phase Succeeded or Failed."""


class Node(Protocol):
    """A node of the cluster. Immutable."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def ready(self) -> bool:
        """Whether no condition of type Ready says otherwise; a node without one is ready."""


FilterFunc = Callable[[Pod], bool]
"""Whether a pod is meant."""
