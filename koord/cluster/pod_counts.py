"""Count pods per node that match affinity terms, incrementally from view to view.

A query costs what has changed since the last view: of a row with another generation only the
added and removed pods are counted.
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
from koord.cluster.selectors import LabelSetIndex, TermIndex
from koord.util.timebudget import exempt, in_time

MAX_BYTES = 16 << 20  # of answers of each of the two kinds; one is 20 kB at 5,000 nodes
MAX_CACHED_TERMS = 16  # of a question that is kept
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
"""The weight of each pod with these labels, by a name, such as a topology key."""


class AffinityTermKind(Enum):
    """The kind of an affinity term of a pod that is on a node."""

    AFFINITY = "required affinity"
    ANTI_AFFINITY = "required anti-affinity"
    PREFERRED_AFFINITY = "preferred affinity"
    PREFERRED_ANTI_AFFINITY = "preferred anti-affinity"


class CountedRows(Protocol):
    """Nodes with their pods, as a view has them."""

    @property
    def generations(self) -> FrozenColumn: ...

    @property
    def namespaces(self) -> Namespaces: ...

    @property
    def topology_keys(self) -> Set[str]:
        """The label keys that nodes have."""

    def pods(self, row: int) -> tuple[ClusterPod, ...]: ...


class PodCounts:
    """Counts of the pods that are not finished, for all views and what-ifs of one snapshot.

    It follows the view that is asked about; between two views that differ in many rows it is slow.
    Answers are kept up to a number of bytes, the latest ones. A term whose topology key no node has
    is in no answer. Any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reset()

    def _reset(self) -> None:
        self._generations: FrozenColumn | None = None  # of the rows that are counted
        self._namespaces: Namespaces | None = None
        self._keys: Set[str] = frozenset()  # topology keys
        self._pods: list[tuple[ClusterPod, ...]] = []  # that are counted, by row
        self._groups_by_labels: dict[
            tuple[LabelSet, bool], _PodGroup
        ] = {}  # True: they are being deleted
        self._label_sets = LabelSetIndex()
        self._queries: _ResultCache[_Query, _CountColumn] = _ResultCache()
        self._query_index: TermIndex[_Query] = TermIndex()
        self._specs_with_terms: dict[PodSpec, _PodGroup] = {}
        self._terms: TermIndex[_IndexedTerm] = TermIndex()
        self._term_counts: _ResultCache[LabelSet, _TermCounts] = _ResultCache()

    def count(
        self, rows: CountedRows, terms: tuple[AffinityTerm, ...], *, deleting: bool
    ) -> Counts:
        """How many pods each node has that all of the terms mean, of which there is one at least.

        deleting: those that are being deleted count as well.
        """
        with self._lock:
            self._follow(rows)
            query = terms, deleting
            column = self._queries.get(query)
            if column is None:
                column = self._count_query(query)
            return column.read()

    def weigh(
        self, rows: CountedRows, namespaces: Iterable[str] | None, weights: Weights
    ) -> Mapping[str, NDArray[np.int64]]:
        """Return the total weight of each node's pods, by the names in weights; nothing is cached.

        namespaces: only pods in them can have a weight; None: all.
        """
        with self._lock:
            self._follow(rows)
            found: dict[str, NDArray[np.int64]] = {}
            for label_set in in_time(self._label_sets.of_namespaces(namespaces)):
                weighed = weights(label_set)
                for deleting in (False, True) if weighed else ():
                    group = self._groups_by_labels.get((label_set, deleting))
                    if group is not None:
                        for name, weight in weighed.items():
                            if name not in found:
                                found[name] = np.zeros(len(self._pods), np.int64)
                            group.weigh(found[name], weight)
            return found

    def follow(self, rows: CountedRows) -> None:
        """Count what has changed, so that the next question costs less."""
        with self._lock:
            self._follow(rows)

    def term_counts(
        self, rows: CountedRows, label_set: LabelSet
    ) -> Mapping[tuple[AffinityTermKind, str], Counts]:
        """Count the affinity terms of each node's pods that match these labels, by topology key.

        A preferred term counts with its weight, a required term with 1.
        """
        with self._lock:
            self._follow(rows)
            self._follow_keys(rows)
            columns = self._term_counts.get(label_set)
            if columns is None:
                columns = self._count_terms(label_set)
            return {key: column.read() for key, column in columns.items()}

    def _follow(self, rows: CountedRows) -> None:
        """Count what the rows have that was not counted yet."""
        try:
            self._count_changes(rows)
        except BaseException:  # it may have been interrupted: what is half counted stays wrong
            self._reset()
            raise

    def _follow_keys(self, rows: CountedRows) -> None:
        """Rebuild the term index if the topology keys of nodes have changed."""
        if not self._specs_with_terms or rows.topology_keys == self._keys:
            return
        self._forget_term_counts()
        self._keys, self._terms = rows.topology_keys, TermIndex()
        for group in self._specs_with_terms.values():
            self._add_terms(group)

    def _count_changes(self, rows: CountedRows) -> None:
        generations, namespaces = rows.generations, rows.namespaces
        if namespaces is not self._namespaces:  # terms select them by their labels
            self._forget_queries()
            self._namespaces = namespaces
        if generations is self._generations:
            return
        length = len(generations)
        if length != len(self._pods):
            self._resize(length)
        changed = generations.other_rows(self._generations)
        self._generations = generations
        # After a restart that is the whole cluster: not what the pod costs that comes first.
        with exempt() if len(changed) > _MANY_ROWS else nullcontext():
            for row in changed:
                if row < length:
                    self._recount(row, rows.pods(row))

    def _resize(self, length: int) -> None:
        self._forget_queries()  # their columns have another length
        known = len(self._pods)
        for row in range(length, known):
            self._recount(row, ())
        del self._pods[length:]
        self._pods += [()] * (length - known)

    def _recount(self, row: int, pods: tuple[ClusterPod, ...]) -> None:
        before, self._pods[row] = self._pods[row], pods
        if before is pods:
            return
        changes: dict[_PodGroup, int] = {}
        added, removed = _difference(before, pods)
        self._note_changes(changes, added, 1)
        self._note_changes(changes, removed, -1)
        for group, change in changes.items():
            if change:
                group.change(row, change)
                if not group.rows:
                    self._drop(group)

    def _note_changes(
        self, changes: dict["_PodGroup", int], pods: Iterable[ClusterPod], times: int
    ) -> None:
        """Note so many more pods of the groups of each, which are made if there are none.

        It goes through all pods of the cluster at the start: so it calls little.
        """
        of_labels, of_specs = self._groups_by_labels, self._specs_with_terms
        for pod in pods:
            if pod.finished:
                continue
            label_set, spec, deleting = pod.label_set, pod.spec, pod.deleting
            group = of_labels.get((label_set, deleting)) or self._new_labels(label_set, deleting)
            changes[group] = changes.get(group, 0) + times
            if spec.has_affinity_terms:
                group = of_specs.get(spec) or self._new_spec(spec)
                changes[group] = changes.get(group, 0) + times

    def _new_labels(self, label_set: LabelSet, deleting: bool) -> "_PodGroup":
        group = self._groups_by_labels[label_set, deleting] = _PodGroup(label_set, deleting)
        self._label_sets.add(label_set)
        for query in self._query_index.candidates(label_set):
            if self._is_counted(query, label_set, deleting):
                self._take(query, group)
        return group

    def _take(self, query: "_Query", group: "_PodGroup") -> None:
        column = self._queries[query]
        column.take(group, 1)
        self._queries.resize(query, _bytes_of_result(query, column))

    def _new_spec(self, spec: PodSpec) -> "_PodGroup":
        self._forget_term_counts()
        group = self._specs_with_terms[spec] = _PodGroup(spec, False)
        self._add_terms(group)
        return group

    def _add_terms(self, group: "_PodGroup") -> None:
        """Index the terms of a spec, each once; skip terms whose topology key no node has."""
        spec, weights = group.what, dict[tuple[AffinityTermKind, AffinityTerm], int]()
        assert isinstance(spec, PodSpec)  # noqa: S101 - no label set has terms
        for kind, term, weight in _terms_of(spec):
            if term.topology_key in self._keys:
                weights[kind, term] = weights.get((kind, term), 0) + weight
        group.indexed = [_IndexedTerm(group, *each, weight) for each, weight in weights.items()]
        for indexed in group.indexed:
            self._terms.put(indexed.term, indexed)

    def _drop(self, group: "_PodGroup") -> None:
        """Forget a group without pods."""
        for column in group.columns:
            column.groups.discard(group)
        what = group.what
        if isinstance(what, PodSpec):
            del self._specs_with_terms[what]
            for indexed in group.indexed:
                self._terms.drop(indexed.term, indexed)
            return
        del self._groups_by_labels[what, group.deleting]
        if (what, not group.deleting) not in self._groups_by_labels:
            self._label_sets.discard(what)

    def _count_query(self, query: "_Query") -> "_CountColumn":
        first = query[0][0]
        groups = [
            group
            for label_set in in_time(self._label_sets.candidates(first))
            for deleting in (False, True)
            if (group := self._groups_by_labels.get((label_set, deleting))) is not None
            and self._is_counted(query, label_set, deleting)
        ]
        column = _CountColumn(len(self._pods))
        if len(query[0]) > MAX_CACHED_TERMS:
            for group in groups:
                column.add_all(group)
            return column
        for group in groups:
            column.take(group, 1)
        self._query_index.put(first, query)
        self._queries.put(query, column, _bytes_of_result(query, column))
        for oldest, ended in self._queries.beyond(MAX_BYTES):
            self._query_index.drop(oldest[0][0], oldest)
            ended.release()
        return column

    def _count_terms(self, label_set: LabelSet) -> "_TermCounts":
        matching = [
            indexed
            for indexed in in_time(self._terms.candidates(label_set))
            if self._matches(indexed.term, label_set)
        ]
        columns: _TermCounts = {}
        for indexed in matching:
            key = indexed.kind, indexed.term.topology_key
            if key not in columns:
                columns[key] = _CountColumn(len(self._pods))
            columns[key].take(indexed.group, indexed.weight)
        self._term_counts.put(label_set, columns, _bytes_of_term_counts(label_set, columns))
        for _, ended in self._term_counts.beyond(MAX_BYTES):
            for column in ended.values():
                column.release()
        return columns

    def _is_counted(self, query: "_Query", label_set: LabelSet, deleting: bool) -> bool:
        terms, with_deleting = query
        return (with_deleting or not deleting) and all(
            self._matches(term, label_set) for term in in_time(terms)
        )

    def _matches(self, term: AffinityTerm, label_set: LabelSet) -> bool:
        assert self._namespaces is not None  # noqa: S101 - see _follow
        return term_matches_labels(term, label_set, self._namespaces)

    def _forget_queries(self) -> None:
        for query, column in self._queries.clear():
            self._query_index.drop(query[0][0], query)
            column.release()
        self._forget_term_counts()

    def _forget_term_counts(self) -> None:
        for _, columns in self._term_counts.clear():
            for column in columns.values():
                column.release()


def term_matches_labels(term: AffinityTerm, label_set: LabelSet, namespaces: Namespaces) -> bool:
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


class _ResultCache(Generic[K, T]):
    """Answers to questions, with the bytes that each takes, the one asked for last at the end."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, query: K) -> T:
        return self._answers[query][0]

    def get(self, query: K) -> T | None:
        """The answer, which is the latest one then; None: there is none."""
        found = self._answers.get(query)
        if found is None:
            return None
        self._answers.move_to_end(query)
        return found[0]

    def put(self, query: K, answer: T, size: int) -> None:
        """Keep a new answer."""
        self._answers[query] = answer, size
        self._bytes += size

    def resize(self, query: K, size: int) -> None:
        """An answer takes another number of bytes now."""
        answer, before = self._answers[query]
        self._answers[query] = answer, size
        self._bytes += size - before

    def beyond(self, most: int) -> Iterator[tuple[K, T]]:
        """Drop the oldest ones until the rest takes at most so many bytes; never the latest."""
        while self._bytes > most and len(self._answers) > 1:
            query, (answer, size) = self._answers.popitem(last=False)
            self._bytes -= size
            yield query, answer

    def clear(self) -> list[tuple[K, T]]:
        """Drop all, and return them."""
        found = [(query, answer) for query, (answer, _) in self._answers.items()]
        self._answers.clear()
        self._bytes = 0
        return found


def _bytes_of_result(query: "_Query", column: "_CountColumn") -> int:
    return _ENTRY_BYTES + column.bytes + sum(map(_bytes_of_term, query[0]))


def _bytes_of_term_counts(label_set: LabelSet, columns: "_TermCounts") -> int:
    labels = sum(len(key) + len(value) for key, value in label_set.labels.items())
    return _ENTRY_BYTES + labels + sum(_ENTRY_BYTES + one.bytes for one in columns.values())


def _bytes_of_term(term: AffinityTerm) -> int:
    requirements = (*(term.selector or ()), *(term.namespace_selector or ()))
    texts = len(term.namespaces) + sum(1 + len(one.values) for one in requirements)
    return 100 * (1 + len(requirements) + texts)


_Query = tuple[tuple[AffinityTerm, ...], bool]  # terms; whether deleted pods count, too


class _PodGroup:
    """Pods that are equal for every query, and the questions that concern them."""

    __slots__ = ("columns", "deleting", "indexed", "rows", "what")

    def __init__(self, what: LabelSet | PodSpec, deleting: bool) -> None:
        self.what = what
        self.deleting = deleting
        self.rows: dict[int, int] = {}  # how many there are on each row that has some
        self.columns: dict[_CountColumn, int] = {}  # with the weight of one of these pods there
        self.indexed: list[_IndexedTerm] = []  # terms, of a spec

    def change(self, row: int, change: int) -> None:
        count = self.rows.get(row, 0) + change
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        for column, weight in self.columns.items():
            column.add(row, change * weight)

    def weigh(self, column: NDArray[Any], weight: int) -> None:
        """Add what the pods weigh to what there is on each row."""
        rows = self.rows
        if len(rows) <= _FEW_ROWS:
            for row, count in rows.items():
                column[row] += weight * count
            return
        at = np.fromiter(rows, np.intp, len(rows))
        column[at] += weight * np.fromiter(rows.values(), column.dtype, len(rows))


class _IndexedTerm:
    """A term of the pods of a group."""

    __slots__ = ("group", "kind", "term", "weight")

    def __init__(
        self, group: _PodGroup, kind: AffinityTermKind, term: AffinityTerm, weight: int
    ) -> None:
        self.group, self.kind, self.term, self.weight = group, kind, term, weight


class _CountColumn:
    """The column that answers a question. What was read of it never changes."""

    __slots__ = ("_column", "groups")

    def __init__(self, nodes: int) -> None:
        self._column = np.zeros(nodes, np.int32)
        self.groups: set[_PodGroup] = set()

    def read(self) -> Counts:
        return read_only(self._column)

    def add(self, row: int, amount: int) -> None:
        self._own()
        self._column[row] += amount

    @property
    def bytes(self) -> int:
        """Bytes of memory that the column takes, roughly."""
        return int(self._column.nbytes) + _LINK_BYTES * len(self.groups)

    def take(self, group: _PodGroup, weight: int) -> None:
        """Count a group, once more if it is counted already."""
        group.columns[self] = group.columns.get(self, 0) + weight
        self.groups.add(group)
        self.add_all(group, weight)

    def add_all(self, group: _PodGroup, weight: int = 1) -> None:
        """Count the pods that a group has now, but not what changes."""
        self._own()
        group.weigh(self._column, weight)

    def release(self) -> None:
        """End the question: groups do not know of it any more."""
        for group in self.groups:
            del group.columns[self]
        self.groups.clear()

    def _own(self) -> None:
        if not self._column.flags.writeable:
            self._column = self._column.copy()


_TermCounts = dict[tuple[AffinityTermKind, str], _CountColumn]
_Pods = tuple[ClusterPod, ...]


def _difference(before: _Pods, after: _Pods) -> tuple[Sequence[ClusterPod], Sequence[ClusterPod]]:
    """Return the pods that were added, and those that were removed."""
    kept = len(before)
    if after[:kept] == before:  # most often one has come
        return after[kept:], ()
    was, stays = set(map(id, before)), set(map(id, after))
    added = [pod for pod in after if id(pod) not in was]
    return added, [pod for pod in before if id(pod) not in stays]


def _terms_of(spec: PodSpec) -> Iterator[tuple[AffinityTermKind, AffinityTerm, int]]:
    yield from ((AffinityTermKind.AFFINITY, term, 1) for term in spec.affinity)
    yield from ((AffinityTermKind.ANTI_AFFINITY, term, 1) for term in spec.anti_affinity)
    for one in spec.preferred_affinity:
        yield AffinityTermKind.PREFERRED_AFFINITY, one.term, one.weight
    for one in spec.preferred_anti_affinity:
        yield AffinityTermKind.PREFERRED_ANTI_AFFINITY, one.term, one.weight
