"""ElasticQuota: pods are placed while their quota has room, and wait until it has.

Source: Koordinator, pkg/scheduler/plugins/elasticquota; docs/differences.md for what differs.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from koord.api import podgroup
from koord.api.elasticquota import NAME, Amounts, amounts_of, is_preemptible
from koord.api.podgroup import PodGroup, read_pod_group
from koord.plugin import InvalidObject, KoordError
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord.plugin.kube import ApiResource
from koord_scheduler.plugin import (
    POD,
    POD_DELETED,
    Action,
    ClusterEvent,
    ClusterPod,
    Code,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    QueueingHint,
    ReservePlugin,
    SharedPart,
    Status,
    View,
    about_itself,
    claims_pods_with,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    FailedPod,
    GroupPlan,
    PendingAdvice,
    PluginRequest,
)
from koord_scheduler.plugin.preemption import (
    Candidate,
    ExtensionPointError,
    NodeStatuses,
    Preemption,
    Preemptions,
    by_namespace,
)
from koord_scheduler_plugins.elastic_quota.advice import (
    QuotaAdvice,
    Waiting,
    find_advice,
    sentences,
)
from koord_scheduler_plugins.elastic_quota.checks import (
    AdmissionOptions,
    Rejection,
    TreeOptions,
    admission,
)
from koord_scheduler_plugins.elastic_quota.hooks import (
    HookMetrics,
    HookPlugin,
    QuotaHooks,
    hook_problems,
)
from koord_scheduler_plugins.elastic_quota.preemption import (
    LEAVING,
    NEVER,
    GroupQuotaPreemption,
    QuotaPreemption,
    make_room_for_group,
)
from koord_scheduler_plugins.elastic_quota.profile import QuotaProfiles, follow_profiles
from koord_scheduler_plugins.elastic_quota.quotas import (
    UNLIMITED,
    LeavingPods,
    QuotaOptions,
    Quotas,
)
from koord_scheduler_plugins.elastic_quota.reclaim import QuotaReclaim
from koord_scheduler_plugins.elastic_quota.revoke import QuotaRevoker
from koord_scheduler_plugins.elastic_quota.runtime import RuntimeOptions
from koord_scheduler_plugins.elastic_quota.status import (
    QuotaStatuses,
    fixed_objects,
    pod_summary,
    summary,
)
from koord_scheduler_plugins.elastic_quota.tracker import (
    PART,
    QUOTAS,
    QuotaTracker,
    QuotaWaitingPod,
    Room,
    room_of,
)

SLICE = 256  # quotas or pods that are looked at in one step
POD_GROUPS = ApiResource(podgroup.API_VERSION, podgroup.PLURAL)
WITHOUT_POD_GROUPS = "minimums of gangs are those of labels and annotations"
MIN_INTERVAL = 0.1  # seconds between two rounds of revoking, at least

_RESOURCE = "elasticquotas.v1alpha1.scheduling.sigs.k8s.io"

_UNLIMITED: Mapping[str, object] = {name: str(UNLIMITED) for name in ("cpu", "memory")}


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticQuotaArgs:
    """How quotas are divided, and what is looked at."""

    delay_evict_time: Seconds = 120.0  # use above the limit that is tolerated
    revoke_pod_interval: Seconds = 1.0
    default_quota_group_max: Mapping[str, object] = field(default_factory=lambda: _UNLIMITED)
    system_quota_group_max: Mapping[str, object] = field(default_factory=lambda: _UNLIMITED)
    quota_group_namespace: str = "koordinator-system"
    monitor_all_quotas: bool = False
    enable_check_parent_quota: bool = False
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    disable_default_quota_preemption: bool = True
    enable_queue_hint: bool = False  # accepted; pods are woken exactly in any case
    quota_snapshot_update_interval: Seconds = 120.0  # accepted; there are no snapshots
    hook_plugins: tuple[HookPlugin, ...] = ()
    profile_controller: bool = False  # quotas of ElasticQuotaProfiles, if no koord-manager does it
    enable_reclaim: bool = False  # pods of quotas that use too much leave for those below min
    check_all_resources: bool = False  # as Koordinator: also those that a pod does not ask for

    def validate(self) -> Iterator[FieldError]:
        for key, value in (
            ("defaultQuotaGroupMax", self.default_quota_group_max),
            ("systemQuotaGroupMax", self.system_quota_group_max),
        ):
            try:
                amounts_of(value.items(), key)
            except InvalidObject as err:
                text = f"elasticQuotaArgs error, {key} should be a positive value: {err}"
                yield invalid((key,), dict(value), text)
        if self.delay_evict_time < 0:
            text = "elasticQuotaArgs error, DelayEvictTime should be a positive value"
            yield invalid(("delayEvictTime",), self.delay_evict_time, text)
        if self.revoke_pod_interval < 0:
            text = "elasticQuotaArgs error, RevokePodCycle should be a positive value"
            yield invalid(("revokePodInterval",), self.revoke_pod_interval, text)
        for text in hook_problems(self.hook_plugins):
            yield invalid(("hookPlugins",), [one.key for one in self.hook_plugins], text)


@dataclass(frozen=True, slots=True)
class _Rejected:
    """A pod that was not admitted, in a cycle or in a what-if within one."""

    pod: ClusterPod
    quota: str
    rejection: Rejection
    need: Amounts  # with the pods that a what-if has placed before it
    room: Room  # that there was without those


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where a pod is to be placed, and which pods leave for it and for those of its group."""

    chosen: Candidate
    others: tuple[tuple[ClusterPod, str], ...] = ()  # of its group, and their nodes


@takes_args(ElasticQuotaArgs)
@claims_pods_with(NAME)
class ElasticQuota(
    PreFilterPlugin,
    PostFilterPlugin,
    ReservePlugin,
    EnqueueExtensions,
    ControllerProvider,
    APIServiceProvider,
    PendingAdvice,
):
    """Admits pods to their quotas."""

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        """Raises KoordError: another profile has other arguments, or a hook cannot be made."""
        services = handle.services
        enabled = services.gates
        options = QuotaOptions(
            runtime=RuntimeOptions(
                enabled=args.enable_runtime_quota,
                scale_min=args.enable_min_quota_scale,
                guarantee=enabled("ElasticQuotaGuaranteeUsage"),
            ),
            default_max=amounts_of(args.default_quota_group_max.items(), "defaultQuotaGroupMax"),
            system_max=amounts_of(args.system_quota_group_max.items(), "systemQuotaGroupMax"),
            multi_tree=enabled("MultiQuotaTree"),
            default_quota=not enabled("DisableDefaultQuota"),
            leaving=_leaving_pods(enabled),
            overhead=not enabled("ElasticQuotaIgnorePodOverhead"),
            tree=TreeOptions(
                subset_keys=enabled("ElasticQuotaEnableUpdateResourceKey"),
                parents_have_pods=enabled("SupportParentQuotaSubmitPod"),
            ),
        )
        self._admission = AdmissionOptions(
            parents=args.enable_check_parent_quota, all_resources=args.check_all_resources
        )
        self._args = args
        self._handle = handle
        self._profile = handle.profile
        self._spare_default = args.disable_default_quota_preemption
        self._preemptions = Preemptions.of(services)
        self._rejected: _Rejected | None = None  # the last one
        self.tracker = services.shared.get(
            PART, lambda: QuotaTracker(services, options, self._admission)
        )
        if self.tracker.hooks is None:
            metrics = services.metrics.own(HookMetrics)
            self.tracker.hooks = QuotaHooks(
                args.hook_plugins, self.tracker.current, metrics, services.clock
            )
        self._hooks = self.tracker.hooks
        self.named_only_at = frozenset() if self._hooks else frozenset({"reserve"})
        known = self.tracker.options, self.tracker.admission, self._hooks.entries
        if known != (options, self._admission, args.hook_plugins):
            raise KoordError("profiles have different ElasticQuotaArgs; all must have the same")
        self.tracker.follow(handle.reconsider)
        services.failures.register(after=self._failed)
        self._pod_groups: Mapping[str, PodGroup] = {}
        if self._revokes or args.enable_reclaim:
            self._pod_groups = services.custom_resources.follow(
                POD_GROUPS, read_pod_group, without=WITHOUT_POD_GROUPS
            ).objects

        self._profiles = follow_profiles(services) if args.profile_controller else None

    @property
    def _revokes(self) -> bool:
        return self._args.monitor_all_quotas and self._args.enable_runtime_quota

    def events_to_register(self) -> Iterable[HintedEvent]:
        """A pod may get another quota. That its quota has room, it learns otherwise.

        What a hook waits for is not known: it may be any pod's end, or a quota.
        """
        yield HintedEvent(ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE), about_itself)
        if self._hooks:
            yield HintedEvent(POD_DELETED, self._may_help_hooks)
            yield HintedEvent(ClusterEvent(_RESOURCE, Action.ALL), self._may_help_hooks)

    def _may_help_hooks(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """Pods that wait for room are woken when there is some."""
        waits = self.tracker.waiting_pod(pod.uid) is not None
        return QueueingHint.SKIP if waits else QueueingHint.QUEUE

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Nowhere while nobody uses quotas."""
        return () if self.tracker.admits_all and not self._hooks else None

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if self.tracker.admits_all and not self._hooks:
            return Status.skip()
        now = self.tracker.current()
        quotas = now.with_account(nodes.account)  # another one in a what-if
        found = quotas.quota_of(pod)
        if found is None:
            return Status.skip()
        name, tree = found
        kept = quotas.states.get(tree)
        if kept is None:
            return Status.failed(
                f"Could not find the specified ElasticQuotaManager for quota: {name}, tree: {tree}"
            )
        rejection = self._rejection(quotas, pod)
        refused = "" if rejection is not None else self._hooks.rejection(name, pod)
        if refused:
            return Status.unschedulable(refused)
        if rejection is None:
            if not state.dry_run:
                self.tracker.tried(pod, name)
            return Status.skip()
        if rejection.error:
            return Status.failed(rejection.message)
        if not state.dry_run:
            self._rejected = self._of(pod, name, rejection, now, quotas)
        return Status.unschedulable(rejection.message)

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Where nobody uses quotas, all pods are admitted."""
        return () if self.tracker.admits_all and not self._hooks else None

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Preempt pods of the quota for the pod, if that gives it room and a node."""
        found = await self._find(state, pod, nodes, statuses)
        if isinstance(found, Status):
            return found
        self._preemptions.metrics.attempts.inc()
        chosen = found.chosen
        self._preemptions.begin(
            Preemption(self._profile, self.name, pod, chosen, others=found.others)
        )
        return PostFilterResult(chosen.node, victims=chosen.victims)

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        found = await self._find(state, pod, nodes, statuses)
        if isinstance(found, Status):
            return found
        return PostFilterResult(found.chosen.node, victims=found.chosen.victims)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Notify hooks; the account has the assumed pod."""
        self._hooks.reserved(pod)
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._hooks.unreserved(pod)

    async def _find(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> "_Choice | Status":
        """A node and victims, or the answer of PostFilter.

        Room on nodes is of no use while the quota has none: no other plugin may preempt then.
        """
        quotas = self.tracker.current().with_account(nodes.account)
        try:
            members = self._handle.groups().members(pod)
        except ExtensionPointError as err:
            return err.status
        if isinstance(members, Status):
            return _no(members.message)
        if len(members) > 1:
            return await self._find_for_group(state, pod, members, nodes, quotas)
        if self._rejection(quotas, pod) is None:
            quota = quotas.quota_of(pod)
            if quota is not None and self._hooks.rejection(quota[0], pod):
                return _no("a hook rejects the pod, whoever leaves")
            reclaimed = await self._reclaim(state, pod, nodes, quotas, statuses)
            return reclaimed if isinstance(reclaimed, Status) else _Choice(reclaimed)
        if self._preemptions.under_way(pod.uid):
            return _no(LEAVING)
        if statuses.absent.plugin != self.name:
            return _no("the quota has no room")
        work = QuotaPreemption(
            pod=pod,
            state=state,
            nodes=nodes,
            quotas=quotas,
            filters=self._handle.filters(),
            budgets=by_namespace(self._handle.services.cluster.budgets.values()),
            options=self._admission,
            spare_default=self._spare_default,
        )
        try:
            found = await work.find()
        except ExtensionPointError as err:
            return err.status
        return _no(found) if isinstance(found, str) else _Choice(found)

    async def _find_for_group(
        self,
        state: CycleState,
        pod: ClusterPod,
        members: Sequence[ClusterPod],
        nodes: View,
        quotas: Quotas,
    ) -> "_Choice | Status":
        """Nodes for all members of a group and victims of the quotas that lack room for them.

        No room on nodes is not looked for: that is left to the plugin of groups.
        """
        by_quota: dict[str, list[ClusterPod]] = {}
        for one in members:
            found = quotas.quota_of(one)
            if found is not None:
                by_quota.setdefault(found[0], []).append(one)
        budgets = by_namespace(self._handle.services.cluster.budgets.values())
        works = (
            GroupQuotaPreemption(
                pod=pod,
                state=state,
                nodes=nodes,
                quotas=quotas,
                filters=self._handle.filters(),
                budgets=budgets,
                options=self._admission,
                spare_default=self._spare_default,
                members=those,
            )
            for those in by_quota.values()
        )
        short = [work for work in works if work.is_short]
        if not short:
            return Status.unschedulable()
        if pod.preemption_policy == "Never":
            return _no(NEVER)
        if self._preemptions.under_way(pod.uid):
            return _no(LEAVING)

        def plan(view: View) -> Mapping[str, str] | None:
            planned = self._handle.groups().plan_members(pod, view)
            return planned.nodes if isinstance(planned, GroupPlan) else None

        try:
            chosen = await make_room_for_group(short, nodes, plan)
        except ExtensionPointError as err:
            return err.status
        if isinstance(chosen, str):
            return _no(chosen)
        planned, victims, violations = chosen
        others = tuple((one, planned[one.key]) for one in members if one.key != pod.key)
        return _Choice(Candidate(planned[pod.key], victims, violations), others)

    async def _reclaim(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        quotas: Quotas,
        statuses: NodeStatuses,
    ) -> Candidate | Status:
        """A node and victims of quotas that use too much; a rejection lets other plugins try."""
        rows = statuses.having(Code.UNSCHEDULABLE)
        if not self._args.enable_reclaim or not rows.any():
            return Status.unschedulable()
        if self._preemptions.under_way(pod.uid):
            return _no(LEAVING)
        work = QuotaReclaim(
            pod=pod,
            state=state,
            nodes=nodes,
            quotas=quotas,
            filters=self._handle.filters(),
            budgets=by_namespace(self._handle.services.cluster.budgets.values()),
            rows=rows,
            pod_groups=self._pod_groups,
        )
        try:
            found = await work.find()
        except ExtensionPointError as err:
            return err.status
        return Status.unschedulable(f"reclaim: {found}") if isinstance(found, str) else found

    def _rejection(self, quotas: Quotas, pod: ClusterPod) -> Rejection | None:
        """Why the quota of a pod does not admit it; None: it does, or there is none."""
        found = quotas.quota_of(pod)
        kept = None if found is None else quotas.states.get(found[1])
        if found is None or kept is None:
            return None
        return admission(
            kept,
            found[0],
            self.tracker.options.request(pod),
            preemptible=is_preemptible(pod.labels),
            options=self._admission,
        )

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        """Which quota lacks what, on which level, and the smallest change that would help."""
        waiting = self._waiting(pod)
        if waiting is None:
            return ()
        nodes = self._handle.services.cluster.view()
        return sentences(self.tracker.current(), waiting, self._admission, nodes)

    def advice(self, pod: ClusterPod) -> QuotaAdvice | None:
        """The change that the advice names; None: there is none."""
        waiting = self._waiting(pod)
        if waiting is None:
            return None
        return find_advice(self.tracker.current(), waiting, self._admission)

    def _waiting(self, pod: ClusterPod) -> Waiting | None:
        """Return what waits for room with the pod: its group too, if it failed with it."""
        known, request = self.tracker.waiting_pod(pod.uid), self.tracker.options.request(pod)
        if known is not None:
            return Waiting(
                quota=known.quota,
                need=known.need,
                request=request,
                preemptible=known.preemptible,
            )
        found = self.tracker.current().quota_of(pod)
        if found is None or pod.node:
            return None
        preemptible = is_preemptible(pod.labels)
        return Waiting(quota=found[0], need=request, request=request, preemptible=preemptible)

    # Services.

    def new_controllers(self) -> Mapping[str, SharedPart]:
        options = self.tracker.options
        fixed = fixed_objects(
            self._args.quota_group_namespace, options.default_max, options.system_max
        )
        statuses = QuotaStatuses(
            self._handle.services, QUOTAS, self.tracker, tuple(fixed), self._hooks.annotations
        )
        found: dict[str, SharedPart] = {"QuotaStatusController": statuses}
        if self._profiles is not None:
            found["QuotaProfileController"] = QuotaProfiles(
                self._handle.services, self._profiles, self.tracker.followed
            )
        if self._revokes:
            found["QuotaOverUsedRevokeController"] = QuotaRevoker(
                self._handle.services,
                self.tracker.current,
                self._profile,
                delay=self._args.delay_evict_time,
                interval=max(self._args.revoke_pod_interval, MIN_INTERVAL),
                pod_groups=self._pod_groups,
            )
        return found

    def endpoints(self) -> Iterable[Endpoint]:
        yield Endpoint("GET", "/quotas/{name}", self._answer_quota)
        yield Endpoint("GET", "/quotas", self._answer_quotas)

    async def _answer_quota(self, request: PluginRequest) -> object:
        name = request.parameters["name"]
        found = summary(self.tracker.current(), name, self.tracker.problems_of)
        if found is None:
            raise LookupError(f"cannot find quota {name}")
        pods = await self._pods({name}, request)
        return {**found, **pods.get(name, {})}

    async def _answer_quotas(self, request: PluginRequest) -> object:
        quotas, tree, found = self.tracker.current(), request.query.get("tree"), {}
        for number, (name, of_tree) in enumerate(sorted(quotas.index.trees.items())):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            asked = tree in (None, of_tree)
            one = summary(quotas, name, self.tracker.problems_of) if asked else None
            if one is not None:
                found[name] = one
        pods = await self._pods(found, request)
        return {name: {**one, **pods.get(name, {})} for name, one in found.items()}

    async def _pods(
        self, names: Collection[str], request: PluginRequest
    ) -> Mapping[str, Mapping[str, object]]:
        """The pods of some quotas, if the request asks for them."""
        if request.query.get("includePods") != "true":
            return {}
        found: dict[str, dict[str, object]] = {name: {} for name in names}
        cluster, quotas = self._handle.services.cluster, self.tracker.current()
        for number, key in enumerate(tuple(cluster.keys(POD))):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            pod = cluster.pod(key)
            if pod is None or pod.finished or not quotas.counts(pod):
                continue
            quota = quotas.quota_of(pod)
            if quota is not None and quota[0] in found:
                found[quota[0]][key] = pod_summary(pod, quotas.options.request(pod))
        return {name: {"podCache": pods} for name, pods in found.items()}

    def _of(
        self, pod: ClusterPod, name: str, rejection: Rejection, now: Quotas, quotas: Quotas
    ) -> _Rejected:
        need, here = dict(self.tracker.options.request(pod)), now.state_of(name)
        there = quotas.state_of(name)
        if here is not None and there is not None and here is not there:
            before, after = here.used(name), there.used(name)
            for key in after:
                added = after[key] - before.get(key, 0)
                if added > 0:
                    need[key] = need.get(key, 0) + added
        room = {} if here is None else room_of(here, name, self._admission)
        return _Rejected(pod, name, rejection, need, room)

    def _failed(self, failed: FailedPod) -> bool:
        """Let the pod wait for room, if its attempt has failed for want of it."""
        rejected, self._rejected = self._rejected, None
        if rejected is None or failed.profile != self._profile or self.name not in failed.plugins:
            return False
        pod = failed.pod
        waiting = QuotaWaitingPod(
            uid=pod.uid,
            quota=rejected.quota,
            need=rejected.need,
            preemptible=is_preemptible(rejected.pod.labels),
            priority=pod.priority or 0,
            created=pod.created or 0.0,
        )
        self.tracker.wait(waiting, rejected.room)
        return False


def _leaving_pods(enabled: Callable[[str], bool]) -> LeavingPods:
    if enabled("ElasticQuotaImmediateIgnoreTerminatingPod"):
        return LeavingPods.NEVER
    if enabled("ElasticQuotaIgnoreTerminatingPod"):
        return LeavingPods.UNTIL_OVERDUE
    return LeavingPods.UNTIL_GONE


def _no(reason: str) -> Status:
    return Status.unresolvable(f"preemption: {reason}")
