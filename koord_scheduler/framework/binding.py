"""From a chosen node to a bound pod: Reserve, Permit, PreBind, Bind, PostBind; and PostFilter.

Source: Kubernetes, pkg/scheduler/framework/runtime/framework.go.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import cast

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, SequentialCalls
from koord_scheduler.framework.extension.reservations import ReservationPlugins
from koord_scheduler.framework.extension.transformers import Transformers
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    PermitPlugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindExtensions,
    PreBindPlugin,
    ReservePlugin,
    ResizePodPlugin,
    pod_changes,
)
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    SUCCESS,
    Code,
    CycleState,
    NodeStatuses,
    PostFilterResult,
    Status,
    Wait,
    status_of,
    suggestion_of,
)

UNRESERVE = "Unreserve"


class PodBinding:
    """Runs what follows Filter and Score, by the plugins of one profile.

    Nothing raises what a plugin raises: it becomes a status with Code.ERROR.
    """

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._plugins = plugins
        self._calls = plugins.calls
        self._transformers = Transformers(plugins)
        self._room = ReservationPlugins(plugins)
        plugins.complete_reservations(self._room)
        self._waiting = plugins.services.waiting
        self._clock = plugins.services.clock
        self._post_filters = plugins.at(Point.POST_FILTER)
        reserving = plugins.at(Point.RESERVE)
        reserves = [cast(ReservePlugin, one.plugin).reserve for one in reserving]
        self._reserving = reserving
        self._reserves = SequentialCalls(plugins.calls, Point.RESERVE, reserving, reserves)
        permitting = plugins.at(Point.PERMIT)
        permits = [cast(PermitPlugin, one.plugin).permit for one in permitting]
        self._permitting = permitting
        self._permits = SequentialCalls(plugins.calls, Point.PERMIT, permitting, permits)
        pre_binding = plugins.at(Point.PRE_BIND)
        flights = [cast(PreBindPlugin, one.plugin).pre_bind_pre_flight for one in pre_binding]
        self._pre_binding = pre_binding
        self._flights = SequentialCalls(plugins.calls, Point.PRE_BIND, pre_binding, flights)
        self._binding = plugins.at(Point.BIND)
        self._post_binding = plugins.at(Point.POST_BIND)

    @property
    def has_post_filters(self) -> bool:
        """Whether any plugin could preempt pods."""
        return bool(self._post_filters)

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        """Call PostFilter until a plugin has found a node, has failed, or knows that none can.

        With neither, the reasons of all are the answer, and the last nomination counts.
        """
        result = await self._post_filter(state, pod, nodes, statuses)
        suggestion = suggestion_of(state)
        if suggestion is not None:
            reasons = (*result.status.reasons, str(suggestion))
            result = replace(result, status=replace(result.status, reasons=reasons))
        self._transformers.after_post_filter(state, pod, statuses, result)
        return result

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        """Return what post_filter would, with the victims, and have nothing done.

        Plugins that cannot say it are passed over, and none learns of it afterwards.
        """
        return await self._post_filter(state, pod, nodes, statuses, dry_run=True)

    async def _post_filter(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        statuses: NodeStatuses,
        *,
        dry_run: bool = False,
    ) -> PostFilterResult:
        rejection: PostFilterResult | None = None
        with self._calls.timed(Point.POST_FILTER.label) as ended:
            for loaded in self._post_filters:
                plugin = cast(PostFilterPlugin, loaded.plugin)
                work = plugin.post_filter_dry_run if dry_run else plugin.post_filter
                make = partial(work, state, pod, nodes, statuses)
                result = await self._post_filter_of(loaded, state, make, dry_run=dry_run)
                if dry_run and result.status.code is Code.SKIP:
                    continue
                ended(result.status.code)
                if result.status.code is not Code.UNSCHEDULABLE:
                    return result
                rejection = result if rejection is None else _both(rejection, result)
        return rejection or PostFilterResult(None, Status.unschedulable())

    def resize(self, state: CycleState, pod: ClusterPod, node: str) -> ClusterPod | Status:
        """The pod as it is to be assumed on the node; anything but a pod ends the cycle."""
        for name, plugin in self._plugins.plugins.items():
            if isinstance(plugin, ResizePodPlugin):
                loaded = self._plugins.loaded(name)
                work = partial(plugin.resize_pod, state, pod, node)
                try:
                    answer = self._calls.call(loaded, Point.RESERVE, state, work)
                except ExtensionPointError as err:
                    return err.status
                if isinstance(answer, ClusterPod) and answer.uid == pod.uid:
                    pod = answer
                    continue
                status = self._checked(loaded, Point.RESERVE, answer)
                if not status.ok:
                    return status
        return pod

    def nominate(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Choose the reservation that the pod is to have on its node, before it is assumed there.

        So it is assumed with the annotation by which it is counted, and not placed twice.
        """
        return self._room.chosen(state, pod, node)

    def reserve(
        self, state: CycleState, pod: ClusterPod, node: str, nominated: Status | None = None
    ) -> Status:
        """Call Reserve of all plugins until one fails: then unreserve is for the caller.

        nominated: the answer of nominate; None: it was not asked yet.
        """
        status = self.nominate(state, pod, node) if nominated is None else nominated
        if status.ok:
            status = self._reserve(state, pod, node)
            self._room.reserved(state, pod)
        return status

    def _reserve(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        with self._calls.timed(Point.RESERVE.label) as ended:
            try:
                answers = self._reserves.until(_is_no_success, state, state, pod, node)
            except ExtensionPointError as err:
                ended(err.status.code)
                return err.status
            for loaded, answer in zip(self._reserving, answers, strict=False):
                if answer is not None:
                    status = self._checked(loaded, Point.RESERVE, answer)
                    if not status.ok:
                        ended(status.code)
                        return status
        return SUCCESS

    def unreserve(self, state: CycleState, pod: ClusterPod, node: str) -> None:
        """Call Unreserve of all plugins, the last one first, whatever becomes of each."""
        with self._calls.timed(UNRESERVE):
            for loaded in reversed(self._reserving):
                plugin = cast(ReservePlugin, loaded.plugin)
                try:
                    self._calls.call(
                        loaded, Point.RESERVE, state, plugin.unreserve, state, pod, node
                    )
                except ExtensionPointError:
                    continue  # it is logged

    def permit(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Call Permit of all plugins. Wait: the pod is among those that wait for a permit."""
        waits: dict[str, float] = {}
        with self._calls.timed(Point.PERMIT.label) as ended:
            try:
                answers = self._permits.until(_is_no_permit, state, state, pod, node)
            except ExtensionPointError as err:
                ended(err.status.code)
                return err.status
            for loaded, answer in zip(self._permitting, answers, strict=False):
                if answer is None:
                    continue
                checked = self._checked_permit(loaded, answer)
                if isinstance(checked, Wait):
                    waits[loaded.name] = checked.seconds
                elif not checked.ok:
                    ended(checked.code)
                    return checked
            if not waits:
                return SUCCESS
            self._waiting.add(pod, waits)
            ended(Code.WAIT)
            text = f'one or more plugins asked to wait and no plugin rejected pod "{pod.name}"'
            return Status(Code.WAIT, (text,))

    async def wait_on_permit(self, pod: ClusterPod) -> Status:
        """Return when all plugins have allowed the pod, or one has rejected it, in its time."""
        waiting = self._waiting.get(pod.uid)
        if waiting is None:
            return SUCCESS
        began = self._clock.monotonic()
        try:
            status = await waiting.wait()
        finally:
            self._waiting.remove(pod.uid)
        waits = self._plugins.services.metrics.permit_waits
        waits.labels(status.code.title).observe(self._clock.monotonic() - began)
        return status

    def pre_bind_pre_flight(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Ask which plugins have something to do in PreBind. Skip: none has."""
        skipped = set()
        try:
            answers = self._flights.until(_is_no_flight, state, state, pod, node)
        except ExtensionPointError as err:
            return err.status
        for loaded, answer in zip(self._pre_binding, answers, strict=False):
            if isinstance(answer, Status) and answer.code is Code.SKIP:
                skipped.add(loaded.name)
            elif answer is not None:
                status = self._checked(loaded, Point.PRE_BIND, answer)
                if not status.ok:
                    return status
        state.skipped_pre_binds = frozenset(skipped)
        return Status.skip() if len(skipped) == len(answers) else SUCCESS

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Call PreBind of all plugins, one after the other, until one fails.

        What they have changed about the pod is applied at the end, by the first plugin that can.
        """
        with self._calls.timed(Point.PRE_BIND.label) as ended:
            for loaded in self._pre_binding:
                if loaded.name in state.skipped_pre_binds:
                    continue
                plugin = cast(PreBindPlugin, loaded.plugin)
                make = partial(plugin.pre_bind, state, pod, node)
                seconds = self._plugins.limits.bind + plugin.pre_bind_timeout
                status = await self._later(loaded, Point.PRE_BIND, state, make, seconds=seconds)
                if not status.ok:
                    ended(status.code)
                    return status
            status = await self._apply_changes(state, pod)
            ended(status.code)
            return status

    async def _apply_changes(self, state: CycleState, pod: ClusterPod) -> Status:
        changes = pod_changes(state)
        if not changes.metadata:
            return SUCCESS
        for loaded in self._pre_binding:
            if isinstance(loaded.plugin, PreBindExtensions):
                make = partial(loaded.plugin.apply_patch, state, pod, changes)
                status = await self._later(loaded, Point.PRE_BIND, state, make, Code.SKIP)
                if status.code is not Code.SKIP:
                    return status
        wanted = "a preBind plugin that applies them, such as DefaultPreBind"
        return Status.failed(f"plugins have changed the pod: wanted {wanted}, found none")

    async def bind(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Call Bind of the plugins, one after the other, until one does not skip."""
        with self._calls.timed(Point.BIND.label) as ended:
            for loaded in self._binding:
                plugin = cast(BindPlugin, loaded.plugin)
                make = partial(plugin.bind, state, pod, node)
                status = await self._later(loaded, Point.BIND, state, make, Code.SKIP)
                if status.code is not Code.SKIP:
                    ended(status.code)
                    return status
            ended(Code.SKIP)
        return Status.failed("wanted a bind plugin that binds the pod, found that all skip it")

    async def post_bind(self, state: CycleState, pod: ClusterPod, node: str) -> None:
        """Call PostBind of all plugins, whatever becomes of each."""
        with self._calls.timed(Point.POST_BIND.label):
            for loaded in self._post_binding:
                plugin = cast(PostBindPlugin, loaded.plugin)
                make = partial(plugin.post_bind, state, pod, node)
                await self._later(loaded, Point.POST_BIND, state, make)

    async def _post_filter_of(
        self,
        loaded: Loaded,
        state: CycleState,
        make: Callable[[], Awaitable[object]],
        *,
        dry_run: bool,
    ) -> PostFilterResult:
        seconds = self._plugins.limits.post_filter
        try:
            answer = await self._calls.run(loaded, Point.POST_FILTER, state, make, seconds)
        except ExtensionPointError as err:
            return PostFilterResult(None, err.status)
        if dry_run and isinstance(answer, Status) and answer.code is Code.SKIP:
            return PostFilterResult(None, answer)
        if not isinstance(answer, PostFilterResult):
            return PostFilterResult(None, self._checked(loaded, Point.POST_FILTER, answer))
        status = self._checked(loaded, Point.POST_FILTER, answer.status)
        return replace(answer, status=status)

    def _checked_permit(self, loaded: Loaded, answer: object) -> Wait | Status:
        if not isinstance(answer, Wait):
            return self._checked(loaded, Point.PERMIT, answer)
        if _is_length(answer.seconds):
            return answer
        wrong = PluginError(f"wanted seconds to wait, found {answer.seconds!r:.80}", loaded.name)
        return self._calls.failed(loaded, Point.PERMIT, wrong)

    async def _later(
        self,
        loaded: Loaded,
        point: Point,
        state: CycleState,
        make: Callable[[], Awaitable[object]],
        *extra: Code,
        seconds: float | None = None,
    ) -> Status:
        """seconds: that it may take; None: those of binding."""
        if seconds is None:
            seconds = self._plugins.limits.bind
        try:
            answer = await self._calls.run(loaded, point, state, make, seconds)
        except ExtensionPointError as err:
            return err.status
        return self._checked(loaded, point, answer, *extra)

    def _checked(self, loaded: Loaded, point: Point, answer: object, *extra: Code) -> Status:
        """The status that a plugin returned; an error is logged, and says where it comes from."""
        try:
            status = status_of(answer, loaded.name, *extra)
        except PluginError as err:
            return self._calls.failed(loaded, point, err)
        if status.code is Code.ERROR:
            return self._calls.failed(loaded, point, ExtensionPointError(status))
        return status


def _is_no_success(answer: object) -> bool:
    return not isinstance(answer, Status) or not answer.ok


def _is_no_permit(answer: object) -> bool:
    """Whether an answer of Permit ends it."""
    if isinstance(answer, Wait):
        return not _is_length(answer.seconds)
    return _is_no_success(answer)


def _is_length(seconds: object) -> bool:
    return isinstance(seconds, int | float) and 0 <= seconds < math.inf


def _is_no_flight(answer: object) -> bool:
    """Whether an answer of PreBindPreFlight ends it."""
    return not isinstance(answer, Status) or answer.code not in (Code.SUCCESS, Code.SKIP)


def _both(one: PostFilterResult, other: PostFilterResult) -> PostFilterResult:
    """Two rejections as one: the reasons of both, from the plugin that was first."""
    reasons = one.status.reasons + other.status.reasons
    status = Status.unschedulable(*reasons).of(one.status.plugin)
    later = one.nominated_node if other.nominated_node is None else other.nominated_node
    return PostFilterResult(later, status)
