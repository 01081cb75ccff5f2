"""The jobs that there are, found by pod, namespace and state without a look at all of them."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from koord.api.podmigrationjob import JobPhase, PodMigrationJob
from koord_descheduler.plugin import ClusterPod

_REMEMBERED = 4096  # uids of jobs that were deleted
_NONE: Mapping[str, PodMigrationJob] = MappingProxyType({})


class JobTable:
    """All jobs by name. Belongs to the event loop.

    Takes what the watch shows and what our own writes were answered with, in any order: an older
    version of a job never replaces a newer one, and a deleted one does not come back.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, PodMigrationJob] = {}
        self.jobs: Mapping[str, PodMigrationJob] = MappingProxyType(self._jobs)  # live
        self._active: dict[str, PodMigrationJob] = {}
        self.active: Mapping[str, PodMigrationJob] = MappingProxyType(self._active)  # live
        self._waiting: dict[str, PodMigrationJob] = {}
        self.waiting: Mapping[str, PodMigrationJob] = MappingProxyType(self._waiting)  # live
        self._by_pod_uid: dict[str, dict[str, PodMigrationJob]] = {}
        self._by_pod_key: dict[str, dict[str, PodMigrationJob]] = {}
        self._by_namespace: dict[str, dict[str, PodMigrationJob]] = {}
        self._begun: Counter[str] = Counter()  # of active jobs, by namespace
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._unconfirmed: dict[str, float] = {}  # names of jobs that only our writes have shown
        self._phases: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def phases(self) -> Mapping[str, int]:
        """How many jobs there are in each phase."""
        return self._phases

    def put(self, job: PodMigrationJob, *, written_at: float | None = None) -> bool:
        """Take over a version of a job; return whether it is news.

        written_at: it is the answer to a write of ours, at that monotonic time.
        """
        old = self._jobs.get(job.name)
        if written_at is None:
            self._unconfirmed.pop(job.name, None)
        if job.uid in self._deleted:
            return False
        if old is not None and old.uid == job.uid and not _is_newer(job.version, old.version):
            return False
        if old is not None:
            self._phases[_phase(old)] -= 1
            self._take_out(old)
        elif written_at is not None:
            self._unconfirmed[job.name] = written_at
        self._jobs[job.name] = job
        self._phases[_phase(job)] += 1
        if job.active:
            self._put_in(job)
        return True

    def remove(self, name: str, uid: str) -> PodMigrationJob | None:
        """Forget a job that was deleted; return it. Of another uid it is not forgotten."""
        if uid:
            self._deleted[uid] = None
            if len(self._deleted) > _REMEMBERED:
                self._deleted.popitem(last=False)
        job = self._jobs.get(name)
        if job is None or uid not in ("", job.uid):
            return None
        del self._jobs[name]
        self._phases[_phase(job)] -= 1
        self._unconfirmed.pop(name, None)
        self._take_out(job)
        return job

    def unseen(self, since: float) -> list[PodMigrationJob]:
        """Jobs that a write before that monotonic time made, and that no watch has shown."""
        names = [name for name, at in self._unconfirmed.items() if at < since]
        return [self._jobs[name] for name in names]

    def of_pod(self, uid: str, key: str) -> Iterator[PodMigrationJob]:
        """The active jobs of a pod, by its uid or its namespace/name."""
        found = self._by_pod_uid.get(uid, _NONE)
        yield from found.values()
        for job in self._by_pod_key.get(key, _NONE).values():
            if job.name not in found:
                yield job

    def of_namespace(self, namespace: str) -> Collection[PodMigrationJob]:
        """The active jobs of pods of a namespace."""
        return self._by_namespace.get(namespace, _NONE).values()

    def count(self, *, begun: bool, namespace: str | None = None) -> int:
        """How many jobs are active; begun: only those that have passed arbitration."""
        if namespace is None:
            return self._begun.total() if begun else len(self._active)
        return self._begun[namespace] if begun else len(self.of_namespace(namespace))

    def has(self, pod: ClusterPod, *, begun: bool) -> bool:
        """Whether a pod has an active job; begun as for count."""
        if not self._active:
            return False
        if pod.uid not in self._by_pod_uid and pod.key not in self._by_pod_key:
            return False
        return not begun or any(map(has_begun, self.of_pod(pod.uid, pod.key)))

    def _put_in(self, job: PodMigrationJob) -> None:
        name, pod = job.name, job.pod
        self._active[name] = job
        for table, key in self._places(job):
            table.setdefault(key, {})[name] = job
        if has_begun(job):
            self._begun[pod.namespace] += 1
        else:
            self._waiting[name] = job

    def _take_out(self, job: PodMigrationJob) -> None:
        if self._active.pop(job.name, None) is None:
            return
        self._waiting.pop(job.name, None)
        for table, key in self._places(job):
            bucket = table[key]
            del bucket[job.name]
            if not bucket:
                del table[key]
        if has_begun(job):
            self._begun[job.pod.namespace] -= 1
            if not self._begun[job.pod.namespace]:
                del self._begun[job.pod.namespace]

    def _places(
        self, job: PodMigrationJob
    ) -> Iterable[tuple[dict[str, dict[str, PodMigrationJob]], str]]:
        pod = job.pod
        if pod.uid:
            yield self._by_pod_uid, pod.uid
        yield self._by_pod_key, pod.key
        yield self._by_namespace, pod.namespace


def has_begun(job: PodMigrationJob) -> bool:
    """Whether an arbitrator has let a job begin."""
    return job.running or job.passed


def _phase(job: PodMigrationJob) -> str:
    return job.phase or JobPhase.PENDING.value


def _is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer; of what cannot be compared the later to come is."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than
