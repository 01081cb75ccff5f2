"""How many pods of a kind each node has, kept from one view to the next.

A question costs what has changed since the view before, not what there is: of a row with another
generation only the pods that came or went are counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from enum import Enum
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

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
from koord.util.timebudget import in_time, unbilled

MOST_BYTES = 16 << 20  # of answers of each of the two kinds; one is 20 kB at 5,000 nodes
MOST_TERMS = 16  # of a question that is kept
_LINK_BYTES = 250  # of a group that an answer counts
_ENTRY_BYTES = 500  # of an answer without anything
_MANY_ROWS = 256  # more than the attempts between two questions change
_FEW_ROWS = 8  # that are counted one by one sooner than as arrays
_NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the label that every namespace has

K = TypeVar("K")
T = TypeVar("T")

Counts = NDArray[np.int32]
"""One number for each node, which cannot be written; shape (nodes,)."""
Namespaces = FrozenShards[ClusterNamespace]
Weights = Callable[[LabelSet], Mapping[str, int]]
"""What each pod with these labels weighs, by a name, such as a topology key."""


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

    @property
    def topology_keys(self) -> Set[str]:
        """The label keys that nodes have."""

    def pods(self, row: int) -> tuple[ClusterPod, ...]: ...


class Census:
    """Counts of the pods that are not finished, for all views and what-ifs of one snapshot.

    It follows the view that is asked about; between two views that differ in many rows it is slow.
    Answers are kept up to a number of bytes, the latest ones. A term whose topology key no node has
    is in no answer. Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._generations: FrozenColumn | None = None  # of the rows that are counted
        self._namespaces: Namespaces | None = None
        self._keys: Set[str] = frozenset()  # topology keys
        self._pods: list[tuple[ClusterPod, ...]] = []  # that are counted, by row
        self._labelled: dict[tuple[LabelSet, bool], _Group] = {}  # True: they are being deleted
        self._label_sets = LabelSetIndex()
        self._questions: _Answers[_Question, _Tally] = _Answers()
        self._asked: TermIndex[_Question] = TermIndex()
        self._wishing: dict[PodSpec, _Group] = {}
        self._terms: TermIndex[_Wished] = TermIndex()
        self._wishes: _Answers[LabelSet, _Wishes] = _Answers()

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
            return tally.read()

    def weigh(
        self, rows: Rows, namespaces: Iterable[str] | None, weights: Weights
    ) -> Mapping[str, NDArray[np.int64]]:
        """What the pods of each node weigh together, by the names that weights has; nothing is
        kept of it.

        namespaces: those in which pods may weigh something; None: all.
        """
        with self._lock:
            self._follow(rows)
            found: dict[str, NDArray[np.int64]] = {}
            for label_set in in_time(self._label_sets.of_namespaces(namespaces)):
                weighed = weights(label_set)
                for deleting in (False, True) if weighed else ():
                    group = self._labelled.get((label_set, deleting))
                    if group is not None:
                        for name, weight in weighed.items():
                            if name not in found:
                                found[name] = np.zeros(len(self._pods), np.int64)
                            group.weigh(found[name], weight)
            return found

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
            self._follow_keys(rows)
            tallies = self._wishes.get(label_set)
            if tallies is None:
                tallies = self._answer_wishes(label_set)
            return {key: tally.read() for key, tally in tallies.items()}

    def _follow(self, rows: Rows) -> None:
        """Count what the rows have that was not counted yet."""
        try:
            self._count_changes(rows)
        except BaseException:  # it may have been interrupted: what is half counted stays wrong
            self._begin_anew()
            raise

    def _follow_keys(self, rows: Rows) -> None:
        """Have the terms of the topology keys that nodes have now."""
        if not self._wishing or rows.topology_keys == self._keys:
            return
        self._forget_wishes()
        self._keys, self._terms = rows.topology_keys, TermIndex()
        for group in self._wishing.values():
            self._add_terms(group)

    def _count_changes(self, rows: Rows) -> None:
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
        # After a restart that is the whole cluster: not what the pod costs that comes first.
        with unbilled() if len(changed) > _MANY_ROWS else nullcontext():
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
                self._take(question, group)
        return group

    def _take(self, question: "_Question", group: "_Group") -> None:
        tally = self._questions[question]
        tally.take(group, 1)
        self._questions.resize(question, _bytes_of_answer(question, tally))

    def _new_spec(self, spec: PodSpec) -> "_Group":
        self._forget_wishes()
        group = self._wishing[spec] = _Group(spec, False)
        self._add_terms(group)
        return group

    def _add_terms(self, group: "_Group") -> None:
        """Have the terms of a spec be found, each once, whose topology keys nodes have."""
        spec, weights = group.what, dict[tuple[Wish, AffinityTerm], int]()
        assert isinstance(spec, PodSpec)  # noqa: S101 - no label set has terms
        for wish, term, weight in _wishes_of(spec):
            if term.topology_key in self._keys:
                weights[wish, term] = weights.get((wish, term), 0) + weight
        group.wished = [_Wished(group, *each, weight) for each, weight in weights.items()]
        for wished in group.wished:
            self._terms.put(wished.term, wished)

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
        groups = [
            group
            for label_set in in_time(self._label_sets.candidates(first))
            for deleting in (False, True)
            if (group := self._labelled.get((label_set, deleting))) is not None
            and self._concerns(question, label_set, deleting)
        ]
        tally = _Tally(len(self._pods))
        if len(question[0]) > MOST_TERMS:
            for group in groups:
                tally.add_all(group)
            return tally
        for group in groups:
            tally.take(group, 1)
        self._asked.put(first, question)
        self._questions.put(question, tally, _bytes_of_answer(question, tally))
        for oldest, ended in self._questions.beyond(MOST_BYTES):
            self._asked.drop(oldest[0][0], oldest)
            ended.release()
        return tally

    def _answer_wishes(self, label_set: LabelSet) -> "_Wishes":
        meant = [
            wished
            for wished in in_time(self._terms.candidates(label_set))
            if self._means(wished.term, label_set)
        ]
        tallies: _Wishes = {}
        for wished in meant:
            key = wished.wish, wished.term.topology_key
            if key not in tallies:
                tallies[key] = _Tally(len(self._pods))
            tallies[key].take(wished.group, wished.weight)
        self._wishes.put(label_set, tallies, _bytes_of_wishes(label_set, tallies))
        for _, ended in self._wishes.beyond(MOST_BYTES):
            for tally in ended.values():
                tally.release()
        return tallies

    def _concerns(self, question: "_Question", label_set: LabelSet, deleting: bool) -> bool:
        terms, with_deleting = question
        return (with_deleting or not deleting) and all(
            self._means(term, label_set) for term in in_time(terms)
        )

    def _means(self, term: AffinityTerm, label_set: LabelSet) -> bool:
        assert self._namespaces is not None  # noqa: S101 - see _follow
        return means(term, label_set, self._namespaces)

    def _forget_questions(self) -> None:
        for question, tally in self._questions.clear():
            self._asked.drop(question[0][0], question)
            tally.release()
        self._forget_wishes()

    def _forget_wishes(self) -> None:
        for _, tallies in self._wishes.clear():
            for tally in tallies.values():
                tally.release()


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


class _Answers(Generic[K, T]):
    """Answers to questions, with the bytes that each takes, the one asked for last at the end."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, question: K) -> T:
        return self._answers[question][0]

    def get(self, question: K) -> T | None:
        """The answer, which is the latest one then; None: there is none."""
        found = self._answers.get(question)
        if found is None:
            return None
        self._answers.move_to_end(question)
        return found[0]

    def put(self, question: K, answer: T, size: int) -> None:
        """Keep a new answer."""
        self._answers[question] = answer, size
        self._bytes += size

    def resize(self, question: K, size: int) -> None:
        """An answer takes another number of bytes now."""
        answer, before = self._answers[question]
        self._answers[question] = answer, size
        self._bytes += size - before

    def beyond(self, most: int) -> Iterator[tuple[K, T]]:
        """Drop the oldest ones until the rest takes at most so many bytes; never the latest."""
        while self._bytes > most and len(self._answers) > 1:
            question, (answer, size) = self._answers.popitem(last=False)
            self._bytes -= size
            yield question, answer

    def clear(self) -> list[tuple[K, T]]:
        """Drop all, and return them."""
        found = [(question, answer) for question, (answer, _) in self._answers.items()]
        self._answers.clear()
        self._bytes = 0
        return found


def _bytes_of_answer(question: "_Question", tally: "_Tally") -> int:
    return _ENTRY_BYTES + tally.bytes + sum(map(_bytes_of_term, question[0]))


def _bytes_of_wishes(label_set: LabelSet, tallies: "_Wishes") -> int:
    labels = sum(len(key) + len(value) for key, value in label_set.labels.items())
    return _ENTRY_BYTES + labels + sum(_ENTRY_BYTES + one.bytes for one in tallies.values())


def _bytes_of_term(term: AffinityTerm) -> int:
    requirements = (*(term.selector or ()), *(term.namespace_selector or ()))
    texts = len(term.namespaces) + sum(1 + len(one.values) for one in requirements)
    return 100 * (1 + len(requirements) + texts)


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

    def weigh(self, column: NDArray[Any], weight: int) -> None:
        """Add what the pods weigh to what there is on each row."""
        rows = self.rows
        if len(rows) <= _FEW_ROWS:
            for row, count in rows.items():
                column[row] += weight * count
            return
        at = np.fromiter(rows, np.intp, len(rows))
        column[at] += weight * np.fromiter(rows.values(), column.dtype, len(rows))


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

    @property
    def bytes(self) -> int:
        """What it takes, about."""
        return int(self._column.nbytes) + _LINK_BYTES * len(self.groups)

    def take(self, group: _Group, weight: int) -> None:
        """Count a group, once more if it is counted already."""
        group.tallies[self] = group.tallies.get(self, 0) + weight
        self.groups.add(group)
        self.add_all(group, weight)

    def add_all(self, group: _Group, weight: int = 1) -> None:
        """Count the pods that a group has now, but not what changes."""
        self._own()
        group.weigh(self._column, weight)

    def release(self) -> None:
        """End the question: groups do not know of it any more."""
        for group in self.groups:
            del group.tallies[self]
        self.groups.clear()

    def _own(self) -> None:
        if not self._column.flags.writeable:
            self._column = self._column.copy()


_Wishes = dict[tuple[Wish, str], _Tally]
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
