"""MigrationController: an evict and filter plugin that moves pods by PodMigrationJobs."""

from koord.api.podmigrationjob import CREATED_BY, EVICT_REASON, EVICT_TRIGGER, PROFILE
from koord_descheduler.plugin import (
    ClusterPod,
    EvictOptions,
    Evictor,
    Handle,
    KubeError,
    LimitedLog,
    MigrationControllerArgs,
    get_logger,
)
from koord_descheduler_plugins.migration.control import NAME, MigrationControl
from koord_descheduler_plugins.migration.rules import ProfileRules

log = get_logger("koord_descheduler.migration")


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

    async def close(self) -> None:
        self._control.leave(self._rules)

    def filter(self, pod: ClusterPod) -> bool:
        return not self._rules.refusal(pod)

    def refusal(self, pod: ClusterPod) -> str:
        return self._rules.refusal(pod)

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return not self._rules.homeless(pod)

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
            why = self._rules.refusal(pod)
            if not why and control.limiters.pause(self._rules.paces(pod)):
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
                self._log.warning("job.uncreated", error=str(err), **facts)
                return False
        log.info("migration.created", job=job.name, node=pod.node, **facts)
        return True
