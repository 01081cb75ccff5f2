"""MigrationController: an evict and filter plugin that moves pods by PodMigrationJobs."""

from koord.api.podmigrationjob import (
    CREATED_BY,
    EVICT_REASON,
    EVICT_TRIGGER,
    PROFILE,
    JobPod,
    PodMigrationJob,
)
from koord.plugin import LimitedLog, get_logger
from koord.plugin.args import takes_args
from koord.plugin.kube import KubeError
from koord_descheduler.plugin import (
    EVICTOR_FILTER_FIELDS,
    GROUP_VERSION,
    POD_ORDER_FIELDS,
    ClusterPod,
    ClusterState,
    EvictOptions,
    Evictor,
    Handle,
    PluginRegistry,
    reads,
)
from koord_descheduler_plugins.migration.args import MigrationControllerArgs
from koord_descheduler_plugins.migration.control import NAME, MigrationControl
from koord_descheduler_plugins.migration.jobs import JobTable
from koord_descheduler_plugins.migration.rules import ProfileRules

log = get_logger("koord_descheduler.migration")


@takes_args(MigrationControllerArgs, group_version=GROUP_VERSION)
@reads(EVICTOR_FILTER_FIELDS, POD_ORDER_FIELDS)
class MigrationController(Evictor):
    """One for each profile; all share the MigrationControl of the process."""

    def __init__(self, args: MigrationControllerArgs | None, handle: Handle) -> None:
        services = handle.services
        self._args = (args or MigrationControllerArgs()).complete()
        self._services = services
        self._profile = handle.profile
        self._log = LimitedLog(log, services.clock)
        self._control = services.shared.get(NAME, lambda: MigrationControl(services))
        self._rules = ProfileRules(
            handle.profile, self._args, self._control.records.jobs, services.cluster
        )
        self._control.enter(self._rules)
        self._rehearsal: Rehearsal | None = None  # of the last cycle in dry-run

    async def close(self) -> None:
        self._control.leave(self._rules)

    def filter(self, pod: ClusterPod) -> bool:
        return not self._rules.reject_reason(pod)

    def reject_reason(self, pod: ClusterPod) -> str:
        return self._rules.reject_reason(pod)

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return not self._rules.unschedulable(pod)

    def rehearse(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Return why no job would be created; "": one would. Quotas count jobs of the cycle."""
        if self._args.dry_run:
            return ""
        cycles = self._services.decisions.cycles
        began = cycles[-1].began if cycles else 0.0
        if self._rehearsal is None or self._rehearsal.began != began:
            jobs, cluster = self._control.records.jobs, self._services.cluster
            self._rehearsal = Rehearsal(began, self._profile, self._args, jobs, cluster)
        return self._rehearsal.migrate(pod)

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        """Create a PodMigrationJob for the pod; return whether there is one now."""
        facts = {"pod": pod.key, "plugin": options.plugin_name, "reason": options.reason}
        if self._args.dry_run:
            log.info("migration.planned", node=pod.node, dry_run=True, **facts)
            return True
        control = self._control
        if not control.records.synced:
            self._log.warning("migration.refused", why="not all jobs are known yet", **facts)
            return False
        async with control.creating:
            why = self._rules.reject_reason(pod)
            if not why and control.limiters.pause(self._rules.rate_limits(pod)):
                why = "pods of its workload or namespace were evicted a short while ago"
            if why:
                log.debug("migration.refused", why=why, **facts)
                return False
            try:
                job = await control.records.create_job(
                    pod,
                    mode=self._args.default_job_mode,
                    ttl=self._args.default_job_ttl,
                    annotations={
                        EVICT_REASON: options.reason,
                        EVICT_TRIGGER: options.plugin_name,
                        CREATED_BY: self._services.identity,
                        PROFILE: self._profile,
                    },
                    delete_options=options.delete_options or self._args.default_delete_options,
                )
            except KubeError as err:
                self._log.warning("job.create_failed", error=str(err), **facts)
                return False
        log.info("migration.created", job=job.name, node=pod.node, **facts)
        return True


class Rehearsal:
    """The rules of a profile as if pods were migrated: nothing of it is seen elsewhere."""

    def __init__(
        self,
        began: float,
        profile: str,
        args: MigrationControllerArgs,
        jobs: JobTable,
        cluster: ClusterState,
    ) -> None:
        """began is when its cycle began, in Unix seconds. jobs are those that there are."""
        self.began = began
        self._jobs = JobTable()
        for job in jobs.active.values():
            self._jobs.put(job)
        self._rules = ProfileRules(profile, args, self._jobs, cluster)

    def migrate(self, pod: ClusterPod) -> str:
        """Let a pod have a job from now on; return why it may not leave, "": it may."""
        reject_reason = self._rules.reject_reason(pod)
        if not reject_reason:
            reference = JobPod(pod.namespace, pod.name, pod.uid)
            self._jobs.put(PodMigrationJob(name=f"rehearsed {pod.key}", pod=reference))
        return reject_reason


def register(registry: PluginRegistry) -> None:
    """Register the plugin under the name that profiles use."""
    registry.register("MigrationController", MigrationController)
