"""Block I/O QoS: throttles and weighs the I/O of best-effort pods and of single pods by device.

Writes blkio.throttle.* and the weights of cgroup v1, io.max, io.latency and the weights of v2, and
the settings of iocost in the root cgroup.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from koord.api.annotations import place
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import BlkIOQoS, Block, ResourceQoS
from koord.plugin import InvalidObject
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    FlagSet,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.kernel import NODE_LOCAL_STORAGE, AuditText, LocalStorage, Resource
from koordlet.plugin.pods import (
    PodSettings,
    ReconcilingPlugin,
    containers_of,
    pods_of,
    strategy_interval,
)
from koordlet_plugins.blkio_reconcile.limits import (
    ANNOTATION,
    V1_THROTTLES,
    WEIGHTS,
    AmbiguousClaim,
    DeviceLookup,
    Devices,
    Limit,
    Resolved,
    VolumeNames,
    ambiguous_claims,
    blocks_of_pod,
    checked,
    costs,
    latencies,
    mounts_by_pod,
    resolve,
    throttles,
    tighter,
    weights,
)

RECHECK_INTERVAL = 30.0  # seconds after which files that the kernel lacked are looked for again
MOUNT_TIMEOUT = 10.0  # seconds that a pod's volume may take to be mounted
BEST_EFFORT, ROOT = "best-effort class", "root"  # scopes of claims
_BEST_EFFORT = frozenset({KubeQoS.BEST_EFFORT.value})
_THROTTLES: tuple[Resource[Any], ...] = (resources.IO_MAX, *(row for row, _ in V1_THROTTLES))
_COSTS: tuple[Resource[Any], ...] = (resources.BLKIO_COST_QOS, resources.BLKIO_COST_MODEL)
_OF_GROUPS: tuple[Resource[Any], ...] = (*_THROTTLES, *WEIGHTS, resources.IO_LATENCY)
_NO_BLOCKS: tuple[Block, ...] = ()


class BlkIORule(NamedTuple):
    """The rule for all pods."""

    lookup: DeviceLookup
    best_effort: Devices  # of the class of best-effort pods
    version: int  # of the cgroups that limit block devices
    weight: Resource[dict[str, int]]  # in which a device's weight is set


def _may_claim() -> Iterator[ClaimScope]:
    for row in _OF_GROUPS:
        yield ClaimScope(row, Level.QOS, _BEST_EFFORT)
        yield ClaimScope(row, Level.POD)
    for row, _ in V1_THROTTLES:
        yield ClaimScope(row, Level.CONTAINER)
    for row in _COSTS:
        yield ClaimScope(row, Level.NODE)


class BlkIOReconcile(ReconcilingPlugin[BlkIORule, tuple[Block, ...]]):
    """Reconciles limits and weights by block device with the NodeSLO and annotations."""

    gates = ("BlkIOReconcile",)
    follows = (StateType.NODE_SLO_SPEC,)
    audit_text = AuditText("UpdateBlkIO", "update {path} to {value}")
    may_claim: ClassVar[tuple[ClaimScope, ...]] = tuple(_may_claim())

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = strategy_interval(flags)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self.settings = PodSettings(self.pod_settings, self.rejections, otherwise=_NO_BLOCKS)
        self._cache = metric_cache
        self._volumes = VolumeNames(client)
        self._missing_files = self.metrics.gauge(
            "missing_files", "Kernel files that are asked for, and that this kernel does not have."
        )

    def begin(self) -> None:
        super().begin()
        self._storage: LocalStorage | None = None
        self._lookup: DeviceLookup | None = None
        self._good: dict[str, Devices] = {}  # what could be used last, by UID or scope
        self._waiting: dict[str, float] = {}  # pods with an unknown device, by UID: since when
        self._supported: frozenset[Resource[Any]] = frozenset()
        self._looked_at = float("-inf")
        self._lacking: tuple[str, ...] = ()
        self._last: ResourceQoS | None = None
        self._root: tuple[Claim, ...] = ()

    async def reconcile(self) -> None:
        """Reconcile pods, the best-effort class's cgroup and the root cgroup."""
        await self._look_for_files()
        await self._look_for_devices()
        self.invalidate(self._waiting)
        await super().reconcile()
        self._forget_pods()
        if self._rule is not None:
            await self.keep(BEST_EFFORT, self._class_claims(self._rule))
            await self._keep_root(self._rule)
            self._report_missing()

    def rule(self) -> BlkIORule | None:
        """The rule; None until the NodeSLO and the node's disks were seen."""
        slo = self.states.node_slo()
        self._last = slo.resource_qos if slo is not None else self._last
        if self._last is None or self._lookup is None:
            return None
        self._refuse_other_classes(self._last)
        best_effort = self._blocks(self._last.be.blkio, self._lookup, BEST_EFFORT, "beClass")
        is_v1 = resources.BLKIO_READ_BPS in self._supported
        weight = next((row for row in WEIGHTS if row in self._supported), None)
        return BlkIORule(
            self._lookup,
            best_effort,
            1 if is_v1 else 2,
            weight or (resources.BFQ_DEVICE_WEIGHT if is_v1 else resources.IO_DEVICE_WEIGHT),
        )

    def pod_settings(self, pod: Pod) -> tuple[Block, ...]:
        if pod.raw_qos_class is QoSClass.NONE or pod.phase != "Running":
            return _NO_BLOCKS
        return blocks_of_pod(pod)

    def claims(
        self, meta: PodMeta, pod_settings: tuple[Block, ...], rule: BlkIORule
    ) -> Iterator[Claim]:
        """The claims of a pod, and on cgroup v1 of its containers.

        There the kernel limits the processes of a cgroup itself, not those below it.
        """
        own = self._devices_of(meta, pod_settings, rule.lookup)
        yield from _claims(Target.of_pod(meta), self._limits(own, rule))
        if rule.version == 1:
            above = rule.best_effort if meta.kube_qos is KubeQoS.BEST_EFFORT else {}
            both = tighter(own, above) if own or above else {}
            for container in containers_of(meta) if both else ():
                yield from _claims(Target.of_container(meta, container), throttles(both, 1))

    def _devices_of(
        self, meta: PodMeta, blocks: tuple[Block, ...], lookup: DeviceLookup
    ) -> Devices:
        uid, pod = meta.uid, meta.pod
        found = resolve(blocks, lookup, pod, place(pod, ANNOTATION)) if blocks else Resolved({})
        if found.problem is None:
            if self._waiting.pop(uid, None) is not None:
                self.rejections.accept(_key(uid))
            self._good[uid] = found.devices
            return found.devices
        now = self.clock.monotonic()
        if now - self._waiting.setdefault(uid, now) >= MOUNT_TIMEOUT:
            self.rejections.reject(_key(uid), found.problem, pod)
        return self._good.get(uid) or found.devices

    def _forget_pods(self) -> None:
        for uid in (self._good.keys() | self._waiting.keys()) - self._reconciled.keys():
            if uid not in (BEST_EFFORT, ROOT):
                self._good.pop(uid, None)
                self._waiting.pop(uid, None)
                self.rejections.forget(_key(uid))

    def _blocks(self, qos: BlkIOQoS, lookup: DeviceLookup, scope: str, key: str) -> Devices:
        """The settings of a class or of the root; the last good ones while they are unusable."""
        where = f"NodeSLO: {key}.blkioQOS.blocks"
        try:
            blocks = checked(qos.blocks if qos.enable else (), where)
        except InvalidObject as err:
            self.rejections.reject(scope, err)
            return self._good.get(scope, {})
        found = resolve(blocks, lookup, None, where)
        if found.problem is not None:
            self.rejections.reject(scope, found.problem)
            return self._good.get(scope) or found.devices
        self.rejections.accept(scope)
        self._good[scope] = found.devices
        return found.devices

    def _refuse_other_classes(self, qos: ResourceQoS) -> None:
        for key, strategy in (
            ("lsrClass", qos.lsr),
            ("lsClass", qos.ls),
            ("systemClass", qos.system),
        ):
            if strategy.blkio.enable and strategy.blkio.blocks:
                wanted = "none: limits are for beClass, cgroupRoot and pods"
                where = f"NodeSLO: {key}.blkioQOS.blocks"
                count = f"{len(strategy.blkio.blocks)} blocks"
                self.rejections.reject(key, InvalidObject(where, wanted=wanted, found=count))
            else:
                self.rejections.accept(key)

    def _limits(self, devices: Devices, rule: BlkIORule) -> Iterator[Limit]:
        if devices:
            yield from throttles(devices, rule.version)
            yield from weights(devices, rule.weight)
            if rule.version == 2:
                yield from latencies(devices)

    def _class_claims(self, rule: BlkIORule) -> Iterator[Claim]:
        target = Target.qos_class(self.kernel.layout, KubeQoS.BEST_EFFORT)
        return _claims(target, self._limits(rule.best_effort, rule))

    async def _keep_root(self, rule: BlkIORule) -> None:
        assert self._last is not None  # noqa: S101 - there is no rule without
        devices = self._blocks(self._last.cgroup_root.blkio, rule.lookup, ROOT, "cgroupRoot")
        claims = tuple(_claims(Target.node(), costs(devices)))
        if claims != self._root:
            await self.claim_all(claims, scope=ROOT)
            self._root = claims

    async def _look_for_devices(self) -> None:
        """Bring the places of volumes up to date."""
        storage = self._cache.get(NODE_LOCAL_STORAGE)
        if not isinstance(storage, LocalStorage):
            return
        before = self._lookup
        if before is None or self._storage != storage:
            self._storage = storage
            disks = replace(storage, mount_source={})  # of mounts only those of volumes matter
            before = self._lookup = DeviceLookup(disks, mounts_by_pod(storage), self._volumes.names)
        await self._volumes.look_up(self._ambiguous(before), self.clock.monotonic())
        if before.volumes is not self._volumes.names:
            self._lookup = before._replace(volumes=self._volumes.names)
        self.degrade(self._volumes.problem, part="claims")

    def _ambiguous(self, lookup: DeviceLookup) -> Iterator[AmbiguousClaim]:
        for meta in pods_of(self.states):
            if ANNOTATION in meta.pod.annotations and meta.pod.claims:
                blocks = self.settings.of(meta.pod) or ()
                yield from ambiguous_claims(meta.pod, blocks, lookup.mounts.get(meta.uid, {}))

    async def _look_for_files(self) -> None:
        """Find out which files this kernel has; log it once, and again when it changes."""
        now = self.clock.monotonic()
        missing = [row for row in (*_OF_GROUPS, *_COSTS) if row not in self._supported]
        if not missing or now - self._looked_at < RECHECK_INTERVAL:
            return
        is_first = self._looked_at < 0
        self._looked_at = now
        pods = self.kernel.layout.qos_dir(KubeQoS.GUARANTEED)
        found = {
            row for row in missing if await self.kernel.supports(row, "" if row in _COSTS else pods)
        }
        self._supported |= found
        if found or is_first:
            names = sorted(row.name for row in self._supported)
            self.log.info("blkio.files_found", found=names)

    def _report_missing(self) -> None:
        """Report the settings that are asked for, and that this kernel cannot have."""
        asked = {claim.resource for claim in self._claimed()}
        rows = sorted(asked - self._supported, key=lambda row: row.name)
        lacking = tuple(row.name for row in rows)
        if lacking != self._lacking:
            self._lacking = lacking
            self._missing_files.set(len(lacking))
            self.degrade(f"this kernel lacks {', '.join(lacking)}" if lacking else "", part="files")
            if lacking:
                self.log.warning("blkio.files_missing", needs={row.name: row.needs for row in rows})

    def _claimed(self) -> Iterator[Claim]:
        yield from self._root
        yield from self._kept.get(BEST_EFFORT, ())
        for one in self._reconciled.values():
            yield from one.claims


def _claims(target: Target, limits: Iterable[Limit]) -> Iterator[Claim]:
    for limit in limits:
        yield Claim(target=target, resource=limit.resource, value=limit.value, reason=limit.reason)


def _key(uid: str) -> str:
    """The name under which a pod's devices are rejected; its annotation has the UID itself."""
    return f"{uid}/devices"


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("BlkIOReconcile", None, BlkIOReconcile())
