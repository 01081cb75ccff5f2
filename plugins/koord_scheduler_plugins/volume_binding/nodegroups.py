"""What can be reached from the same nodes, as one group: local storage has one for each node."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import CodedColumn, View
from koord_scheduler.plugin.storage import NodeTerm

Terms = tuple[NodeTerm, ...] | None
"""One must match a node; None: all nodes."""

Groups = NDArray[np.intp]


class NodeGroups:
    """Numbers for equal node terms. Most want one value of one label, and are found by that."""

    def __init__(self) -> None:
        self._groups: dict[Terms, int] = {}
        self._by_label: dict[str, dict[str, int]] = {}  # by label, by value
        self._others: dict[int, Terms] = {}
        self._codes: dict[str, tuple[CodedColumn[str], Groups, Groups]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, terms: Terms) -> int:
        """The number of these terms; it stays."""
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = len(self._groups)
            label = _only_label(terms)
            if label is None:
                self._others[group] = terms
            else:
                self._by_label.setdefault(label[0], {})[label[1]] = group
        return group

    @property
    def others(self) -> Mapping[int, Terms]:
        """The groups that more than one value of one label decides, with their terms."""
        return self._others

    def by_label(self, nodes: View) -> Iterator[tuple[CodedColumn[str], Groups, Groups]]:
        """For each label that decides: its column, groups, and the code of the value of each.

        Only values that some node has.
        """
        for key, by_value in self._by_label.items():
            column, known = nodes.traits.label(key), self._codes.get(key)
            if known is None or known[0] is not column:
                known = column, np.zeros(0, np.intp), np.zeros(0, np.intp)
            if len(known[1]) != len(by_value):
                groups = np.fromiter(by_value.values(), np.intp, len(by_value))
                found = (column.index.get(value, -1) for value in by_value)
                known = column, groups, np.fromiter(found, np.intp, len(by_value))
            self._codes[key] = known
            there = known[2] >= 0
            yield column, known[1][there], known[2][there]


def _only_label(terms: Terms) -> tuple[str, str] | None:
    """The label and value that a node must have, if that is all that there is to it."""
    if terms is None or len(terms) != 1:
        return None
    term = terms[0]
    if term.names or len(term.labels) != 1:
        return None
    one = term.labels[0]
    return (one.key, one.values[0]) if one.operator == "In" and len(one.values) == 1 else None
