"""How many pods of a kind each node has, kept from one view to the next.

A question costs what has changed since the view before, not what there is: of a row with another
generation only the pods that came or went are counted.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, FrozenShards, read_only
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNamespace,
    ClusterPod,
    LabelSet,
    PodSpec,
    selects,
)
from koord.cluster.selectorindex import LabelSetIndex, TermIndex

MOST_QUESTIONS = 256  # of each of the two kinds; 20 kB each at 5,000 nodes
_FEW_ROWS = 8  # that are counted one by one sooner than as arrays
_NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the label that every namespace has

Counts = NDArray[np.int32]
"""One number for each node, which cannot be written; shape (nodes,)."""
Namespaces = FrozenShards[ClusterNamespace]


class Wish(Enum):
    """What an affinity term of a pod that is on a node wants for those that it means."""

    AFFINITY = "required affinity"
    ANTI_AFFINITY = "required anti-affinity"
    PREFERRED_AFFINITY = "preferred affinity"
    PREFERRED_ANTI_AFFINITY = "preferred anti-affinity"


class Rows(Protocol):
    """Nodes with their pods, as a view has them."""

    @property
    def generations(self) -> FrozenColumn: ...

    @property
    def namespaces(self) -> Namespaces: ...

    def pods(self, row: int) -> tuple[ClusterPod, ...]: ...


class Census:
    """Counts of the pods that are not finished, for all views and what-ifs of one snapshot.

    It follows the view that is asked about; between two views that differ in many rows it is slow.
    Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._generations: FrozenColumn | None = None  # of the rows that are counted
        self._namespaces: Namespaces | None = None
        self._pods: list[tuple[ClusterPod, ...]] = []  # that are counted, by row
        self._labelled: dict[tuple[LabelSet, bool], _Group] = {}  # True: they are being deleted
        self._label_sets = LabelSetIndex()
        self._questions: OrderedDict[_Question, _Tally] = OrderedDict()
        self._asked: TermIndex[_Question] = TermIndex()
        self._wishing: dict[PodSpec, _Group] = {}
        self._terms: TermIndex[_Wished] = TermIndex()
        self._wishes: OrderedDict[LabelSet, dict[tuple[Wish, str], _Tally]] = OrderedDict()

    def count(self, rows: Rows, terms: tuple[AffinityTerm, ...], *, deleting: bool) -> Counts:
        """How many pods each node has that all of the terms mean, of which there is one at least.

        deleting: those that are being deleted count as well.
        """
        with self._lock:
            self._follow(rows)
            question = terms, deleting
            tally = self._questions.get(question)
            if tally is None:
                tally = self._answer(question)
            self._questions.move_to_end(question)
            return tally.read()

    def follow(self, rows: Rows) -> None:
        """Count what has changed, so that the next question costs less."""
        with self._lock:
            self._follow(rows)

    def wishes(self, rows: Rows, label_set: LabelSet) -> Mapping[tuple[Wish, str], Counts]:
        """What pods on each node want for pods with these labels, by topology key.

        Each of their terms counts with its weight, a required one with 1.
        """
        with self._lock:
            self._follow(rows)
            tallies = self._wishes.get(label_set)
            if tallies is None:
                tallies = self._answer_wishes(label_set)
            self._wishes.move_to_end(label_set)
            return {key: tally.read() for key, tally in tallies.items()}

    def _follow(self, rows: Rows) -> None:
        """Count what the rows have that was not counted yet."""
        generations, namespaces = rows.generations, rows.namespaces
        if namespaces is not self._namespaces:  # terms select them by their labels
            self._forget_questions()
            self._namespaces = namespaces
        if generations is self._generations:
            return
        length = len(generations)
        if length != len(self._pods):
            self._resize(length)
        changed = generations.other_rows(self._generations)
        self._generations = generations
        for row in changed:
            if row < length:
                self._recount(row, rows.pods(row))

    def _resize(self, length: int) -> None:
        self._forget_questions()  # their columns have another length
        known = len(self._pods)
        for row in range(length, known):
            self._recount(row, ())
        del self._pods[length:]
        self._pods += [()] * (length - known)

    def _recount(self, row: int, pods: tuple[ClusterPod, ...]) -> None:
        before, self._pods[row] = self._pods[row], pods
        if before is pods:
            return
        changes: dict[_Group, int] = {}
        came, gone = _difference(before, pods)
        for pod in came:
            for group in self._groups(pod):
                changes[group] = changes.get(group, 0) + 1
        for pod in gone:
            for group in self._groups(pod):
                changes[group] = changes.get(group, 0) - 1
        for group, change in changes.items():
            if change:
                group.change(row, change)
                if not group.rows:
                    self._drop(group)

    def _groups(self, pod: ClusterPod) -> "Iterator[_Group]":
        """The groups of a pod, which are made if there are none."""
        if pod.finished:
            return
        label_set, spec, deleting = pod.label_set, pod.spec, pod.deleting
        yield self._labelled.get((label_set, deleting)) or self._new_labels(label_set, deleting)
        if spec.about_pods:
            yield self._wishing.get(spec) or self._new_spec(spec)

    def _new_labels(self, label_set: LabelSet, deleting: bool) -> "_Group":
        group = self._labelled[label_set, deleting] = _Group(label_set, deleting)
        self._label_sets.add(label_set)
        for question in self._asked.candidates(label_set):
            if self._concerns(question, label_set, deleting):
                self._questions[question].take(group, 1)
        return group

    def _new_spec(self, spec: PodSpec) -> "_Group":
        self._forget_wishes()
        group = self._wishing[spec] = _Group(spec, False)
        for wish, term, weight in _wishes_of(spec):
            wished = _Wished(group, wish, term, weight)
            group.wished.append(wished)
            self._terms.put(term, wished)
        return group

    def _drop(self, group: "_Group") -> None:
        """Forget a group without pods."""
        for tally in group.tallies:
            tally.groups.discard(group)
        what = group.what
        if isinstance(what, PodSpec):
            del self._wishing[what]
            for wished in group.wished:
                self._terms.drop(wished.term, wished)
            return
        del self._labelled[what, group.deleting]
        if (what, not group.deleting) not in self._labelled:
            self._label_sets.discard(what)

    def _answer(self, question: "_Question") -> "_Tally":
        first = question[0][0]
        tally = self._questions[question] = _Tally(len(self._pods))
        self._asked.put(first, question)
        for label_set in self._label_sets.candidates(first):
            for deleting in (False, True):
                group = self._labelled.get((label_set, deleting))
                if group is not None and self._concerns(question, label_set, deleting):
                    tally.take(group, 1)
        if len(self._questions) > MOST_QUESTIONS:
            oldest, ended = self._questions.popitem(last=False)
            self._asked.drop(oldest[0][0], oldest)
            ended.release()
        return tally

    def _answer_wishes(self, label_set: LabelSet) -> "dict[tuple[Wish, str], _Tally]":
        tallies: dict[tuple[Wish, str], _Tally] = {}
        for wished in self._terms.candidates(label_set):
            if self._means(wished.term, label_set):
                key = wished.wish, wished.term.topology_key
                if key not in tallies:
                    tallies[key] = _Tally(len(self._pods))
                tallies[key].take(wished.group, wished.weight)
        self._wishes[label_set] = tallies
        if len(self._wishes) > MOST_QUESTIONS:
            _, ended = self._wishes.popitem(last=False)
            for tally in ended.values():
                tally.release()
        return tallies

    def _concerns(self, question: "_Question", label_set: LabelSet, deleting: bool) -> bool:
        terms, with_deleting = question
        return (with_deleting or not deleting) and all(
            self._means(term, label_set) for term in terms
        )

    def _means(self, term: AffinityTerm, label_set: LabelSet) -> bool:
        assert self._namespaces is not None  # noqa: S101 - see _follow
        return means(term, label_set, self._namespaces)

    def _forget_questions(self) -> None:
        for question, tally in self._questions.items():
            self._asked.drop(question[0][0], question)
            tally.release()
        self._questions.clear()
        self._forget_wishes()

    def _forget_wishes(self) -> None:
        for tallies in self._wishes.values():
            for tally in tallies.values():
                tally.release()
        self._wishes.clear()


def means(term: AffinityTerm, label_set: LabelSet, namespaces: Namespaces) -> bool:
    """Whether an affinity term means pods with this namespace and these labels."""
    if not selects(term.selector, label_set.labels):
        return False
    name = label_set.namespace
    return name in term.namespaces or (
        term.namespace_selector is not None
        and selects(term.namespace_selector, labels_of(name, namespaces))
    )


def labels_of(name: str, namespaces: Namespaces) -> Mapping[str, str]:
    """Labels of a namespace; of one that is not known, the one label that every namespace has."""
    found = namespaces.get(name)
    return {_NAMESPACE_NAME: name} if found is None else found.labels


_Question = tuple[tuple[AffinityTerm, ...], bool]  # terms; whether deleted pods count, too


class _Group:
    """Pods that no question tells apart, and the questions that concern them."""

    __slots__ = ("deleting", "rows", "tallies", "what", "wished")

    def __init__(self, what: LabelSet | PodSpec, deleting: bool) -> None:
        self.what = what
        self.deleting = deleting
        self.rows: dict[int, int] = {}  # how many there are on each row that has some
        self.tallies: dict[_Tally, int] = {}  # with the weight of one of these pods there
        self.wished: list[_Wished] = []  # terms, of a spec

    def change(self, row: int, change: int) -> None:
        count = self.rows.get(row, 0) + change
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        for tally, weight in self.tallies.items():
            tally.add(row, change * weight)


class _Wished:
    """A term of the pods of a group."""

    __slots__ = ("group", "term", "weight", "wish")

    def __init__(self, group: _Group, wish: Wish, term: AffinityTerm, weight: int) -> None:
        self.group, self.wish, self.term, self.weight = group, wish, term, weight


class _Tally:
    """The column that answers a question. What was read of it never changes."""

    __slots__ = ("_column", "groups")

    def __init__(self, nodes: int) -> None:
        self._column = np.zeros(nodes, np.int32)
        self.groups: set[_Group] = set()

    def read(self) -> Counts:
        return read_only(self._column)

    def add(self, row: int, amount: int) -> None:
        self._own()
        self._column[row] += amount

    def take(self, group: _Group, weight: int) -> None:
        """Count a group, once more if it is counted already."""
        group.tallies[self] = group.tallies.get(self, 0) + weight
        self.groups.add(group)
        rows = group.rows
        if len(rows) <= _FEW_ROWS:
            for row, count in rows.items():
                self.add(row, weight * count)
            return
        self._own()
        at = np.fromiter(rows, np.intp, len(rows))
        self._column[at] += weight * np.fromiter(rows.values(), np.int32, len(rows))

    def release(self) -> None:
        """End the question: groups do not know of it any more."""
        for group in self.groups:
            del group.tallies[self]
        self.groups.clear()

    def _own(self) -> None:
        if not self._column.flags.writeable:
            self._column = self._column.copy()


_Pods = tuple[ClusterPod, ...]


def _difference(before: _Pods, after: _Pods) -> tuple[Sequence[ClusterPod], Sequence[ClusterPod]]:
    """Return the pods that came, and those that have gone."""
    kept = len(before)
    if after[:kept] == before:  # most often one has come
        return after[kept:], ()
    was, stays = set(map(id, before)), set(map(id, after))
    came = [pod for pod in after if id(pod) not in was]
    return came, [pod for pod in before if id(pod) not in stays]


def _wishes_of(spec: PodSpec) -> Iterator[tuple[Wish, AffinityTerm, int]]:
    yield from ((Wish.AFFINITY, term, 1) for term in spec.affinity)
    yield from ((Wish.ANTI_AFFINITY, term, 1) for term in spec.anti_affinity)
    for one in spec.preferred_affinity:
        yield Wish.PREFERRED_AFFINITY, one.term, one.weight
    for one in spec.preferred_anti_affinity:
        yield Wish.PREFERRED_ANTI_AFFINITY, one.term, one.weight
