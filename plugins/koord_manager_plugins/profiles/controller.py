"""Controllers of profiles: their policies on the API server, and pods that wait for a node.

ColocationProfilePolicies keeps the admission policies of profiles, GPUs and pod rules.

Everything that it keeps has a label, and nothing without that label is touched. It stays when the
daemon stops: the API server then goes on by itself. A profile that cannot be used keeps its last
good policy.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.plugin import (
    OK,
    HealthStatus,
    InvalidObject,
    LastingFailure,
    LogState,
    PartHealth,
    Stop,
    get_logger,
)
from koord.plugin.kube import (
    MERGE_PATCH,
    PODS,
    AlreadyExists,
    ApiClient,
    ApiError,
    ApiResource,
    Change,
    Conflict,
    Event,
    EventType,
    KubeError,
    MissingKind,
    NotFound,
    ObjectRef,
    SharedInformer,
)
from koord_manager.plugin import ControllerPlugin, Handle, PodMutator, Services
from koord_manager_plugins.profiles import policies, rules
from koord_manager_plugins.profiles.mutation import (
    MutationOptions,
    PriorityClass,
    amend,
    class_names,
    merge_patch,
    mutate,
)
from koord_manager_plugins.profiles.policies import MANAGED_BY, NAME, PROFILE, Object
from koord_manager_plugins.profiles.profile import Profile, parse_profile

API_VERSION, KIND = "config.koordinator.sh/v1alpha1", "ClusterColocationProfile"
PROFILES = ApiResource(API_VERSION, "clustercolocationprofiles")
PRIORITY_CLASSES = ApiResource("scheduling.k8s.io/v1", "priorityclasses")
NAMESPACES = ApiResource("v1", "namespaces")
GROUP = "admissionregistration.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1alpha1")  # of mutating policies, the best first
LOOK = 30.0  # seconds between two looks at policies that nothing has happened to
RECHECK = 600.0  # seconds between two questions for the versions that are served
SETTLE = 0.5  # seconds in which profiles change together
MAX_PROFILES = 256
CONTROLLER_MANAGED = "config.koordinator.sh/controller-managed"  # label of a profile
PAGE = 250  # pods
BURST, RATE = 100, 10.0  # changes of pods in a look, and after that a second
REMEMBERED = 300.0  # seconds that a pod is left alone for which a change was refused
MAX_REFUSED = 10_000  # pods
_WAITING = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
_PLURALS = {
    policies.POLICY: "mutatingadmissionpolicies",
    policies.BINDING: "mutatingadmissionpolicybindings",
    rules.POLICY: "validatingadmissionpolicies",
    rules.BINDING: "validatingadmissionpolicybindings",
}
_OURS = {"labelSelector": f"{MANAGED_BY}={NAME}"}

log = get_logger("koord_manager.profiles")

Key = tuple[str, str]  # kind and name


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The objects that the API server is to have."""

    objects: Mapping[Key, Object]
    kept: frozenset[str]  # names of policies that stay as they are, whatever they are
    problems: Mapping[str, str]  # by profile: why it has no new policy
    notes: Mapping[str, tuple[tuple[str, str], ...]]  # by profile: reason and text


@dataclass(slots=True)
class _Written:
    """The object written last, and how the server stored it."""

    wanted: Object
    stored: Object = field(default_factory=dict)


def wanted_objects(
    profiles: Iterable[Mapping[str, Any]],
    classes: Mapping[str, PriorityClass],
    options: MutationOptions,
    *,
    mutating: str,
    validating: Iterable[Object],
) -> Wanted:
    """Return what there is to be for profiles, which are objects of the API server. Pure.

    mutating: the version of mutating policies; "": there are to be none. validating: the policies
    of rules.
    """
    found: list[Profile] = []
    problems: dict[str, str] = {}
    notes: dict[str, list[tuple[str, str]]] = {}
    names = sorted(((one["metadata"]["name"], one) for one in profiles), key=lambda one: one[0])
    for name, item in names:
        if len(found) >= MAX_PROFILES:
            problems[name] = f"there are more than {MAX_PROFILES} profiles"
            continue
        try:
            found.append(parse_profile(item))
        except InvalidObject as err:
            problems[name] = str(err)
    objects = [*validating]
    named = {one.priority_class for one in found}
    known = {name: one for name, one in class_names(classes).items() if name in named}
    every = policies.ProfileSet(found)
    for profile in found if mutating else ():
        if profile.priority_class and profile.priority_class not in classes:
            problems[profile.name] = (
                f"spec.priorityClassName: wanted a PriorityClass, found {profile.priority_class!r}"
            )
            continue
        try:
            made = policies.profile_policy(profile, every, known, mutating, options)
        except InvalidObject as err:
            problems[profile.name] = str(err)
            continue
        objects += made.objects
        said = [("NotExpressible", one) for one in made.not_applied]
        if made.overruled:
            said.append(("Overruled", ", ".join(made.overruled[:10])))
        if profile.matches_everything:
            said.append(("SelectsEverything", "it is for all pods of all namespaces"))
        if said:
            notes[profile.name] = said
    if mutating and options.devices:
        objects += policies.device_policy(mutating)
    if mutating and options.extended_spec:
        objects += policies.extended_spec_policy(mutating)
    return Wanted(
        objects={(one["kind"], one["metadata"]["name"]): one for one in objects},
        kept=frozenset(policies.policy_name(name) for name in problems)
        if mutating
        else frozenset(),
        problems=problems,
        notes={name: tuple(said) for name, said in notes.items()},
    )


class ColocationProfilePolicies(ControllerPlugin, PodMutator):
    """Keeps them; see the module."""

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments."""
        gates = handle.gates.enabled
        self._clock = handle.clock
        self._services = handle.services
        self._mutates, self._validates = gates("PodMutatingWebhook"), gates("PodValidatingWebhook")
        self._options = MutationOptions(
            translate=not gates("ColocationProfileSkipMutatingResources"),
            extended_spec=not gates("DisableExtendedResourceSpec"),
            devices=not gates("DisableDeviceResourceSpec"),
        )
        self._rules: list[Object] = []
        if self._validates:
            fixed = not gates("ColocationProfileSkipValidatingPriority")
            self._rules += rules.qos_policy(sub_priority_is_fixed=fixed)
            if gates("ValidatePodDeviceResource"):
                self._rules += rules.device_rules_policy()
        self._changed = asyncio.Event()
        self._versions: tuple[str, str] | None = None  # of mutating and of validating policies
        self._asked = float("-inf")
        self._written: dict[Key, _Written] = {}
        self._problems: dict[str, str] = {}
        self._reject_reasons: dict[str, str] = {}  # by profile or policy: what the server has said
        self._reasons_before: dict[str, str] = {}
        self._said: dict[str, set[tuple[str, str]]] = {}
        self._trouble = LogState(log)
        self._trouble_text = ""
        self._by_webhook = False
        self._last_good: dict[str, Profile] = {}
        if handle.services is not None:
            informer = handle.services.informer
            self._profiles = _profiles_informer(handle.services)
            self._classes = informer(PRIORITY_CLASSES)
            for one in (self._profiles, self._classes):
                one.add_handler(self._note)
            self._by_webhook = handle.services.webhook and self._mutates
            if self._by_webhook:  # the webhook has what policies would have: one of them is enough
                self._mutates = False
                self._namespaces = informer(NAMESPACES)
                self._profiles.add_handler(self._remember)

    def _remember(self, change: Change[Any]) -> None:
        """Parse a profile for the webhook; one that is invalid stays as it was."""
        if change.new is None:
            self._last_good.pop(change.key, None)
            return
        try:
            self._last_good[change.key] = parse_profile(change.new)
        except InvalidObject as err:
            log.warning("profile.invalid", profile=change.key, error=str(err))

    def mutate_pod(self, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        if not self._by_webhook:
            return pod
        found = self._namespaces.objects.get(namespace)
        if found is None:
            raise InvalidObject("namespace", wanted="one that is known", found=namespace)
        if not (self._profiles.synced and self._classes.synced):
            raise InvalidObject("profiles", wanted="all", found="no answer of the API server yet")
        labels = found["metadata"].get("labels") or {}
        classes = dict(_priority_classes(self._classes.objects.values()))
        profiles = self._last_good.values()
        return mutate(pod, labels, profiles, classes, self._draw, self._options)

    def _draw(self) -> int:
        return random.randrange(100)  # noqa: S311 - a share of pods, no secret

    def _note(self, change: Change[Any]) -> None:
        self._changed.set()

    def health(self) -> PartHealth:
        reasons = [f"{name}: {text}" for name, text in sorted(self._problems.items())]
        if self._trouble_text:
            reasons.insert(0, self._trouble_text)
        if not reasons:
            return OK
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons[:5]))

    async def run(self, stop: Stop) -> None:
        services = self._services
        if services is None:
            return
        await stop.bound(self._profiles.wait_answered())
        await stop.bound(self._classes.wait_synced())
        async for _ in stop.every(LOOK, self._changed):
            await stop.sleep(SETTLE)
            self._changed.clear()
            try:
                await self._reconcile(services)
            except KubeError as err:
                self._trouble_text = str(err)
                self._trouble.failed("policies.failed", error=str(err))
            else:
                self._trouble_text = self._unserved()
                self._trouble.ended("policies.recovered")

    def _unserved(self) -> str:
        mutating, validating = self._versions or ("", "")
        lacking = [
            kind
            for kind, wanted, served in (
                (policies.POLICY, self._mutates, mutating),
                (rules.POLICY, self._validates, validating),
            )
            if wanted and not served
        ]
        return f"the API server has no {' and no '.join(lacking)}" if lacking else ""

    async def _reconcile(self, services: Services) -> None:
        """Bring all policies in line. Raises KubeError."""
        mutating, validating = await self._served(services.client)
        wanted = await asyncio.to_thread(  # many profiles that contradict each other take a second
            wanted_objects,
            tuple(self._profiles.objects.values()),
            dict(_priority_classes(tuple(self._classes.objects.values()))),
            self._options,
            mutating=mutating if self._mutates else "",
            validating=self._rules if validating else (),
        )
        self._reject_reasons, self._reasons_before = {}, self._reject_reasons
        self._problems = dict(wanted.problems)
        self._say(services, wanted)
        versions = {
            policies.POLICY: mutating,
            policies.BINDING: mutating,
            rules.POLICY: validating,
            rules.BINDING: validating,
        }
        found: dict[Key, Object] = {}
        for kind, version in versions.items():
            if version:
                listed = await services.client.list(_resource(kind, version).collection(), _OURS)
                for one in listed.items:
                    if (one["metadata"].get("labels") or {}).get(MANAGED_BY) == NAME:
                        found[kind, one["metadata"]["name"]] = one
        for key, item in wanted.objects.items():  # a policy before its binding
            await self._write(services, key, item, found.get(key))
        # A binding before its policy. While the profiles are not known, none is deleted.
        known = self._profiles.synced
        for key, old in sorted(found.items(), reverse=True, key=lambda one: "Binding" in one[0][0]):
            is_of_profile = PROFILE in (old["metadata"].get("annotations") or {})
            if key not in wanted.objects and key[1] not in wanted.kept and (
                known or not is_of_profile
            ):  # fmt: skip
                await self._delete(services, key, old, versions[key[0]])

    async def _served(self, client: ApiClient) -> tuple[str, str]:
        now = self._clock.monotonic()
        if self._versions is not None and now - self._asked < RECHECK:
            return self._versions
        found: dict[str, str] = {}
        for version in VERSIONS:
            try:
                listed = await client.get(f"/apis/{GROUP}/{version}")
            except NotFound:
                continue
            resources = listed.get("resources")
            for one in resources if isinstance(resources, list) else ():
                if isinstance(one, dict):
                    found.setdefault(str(one.get("name")), version)
        mutating = found.get(_PLURALS[policies.POLICY], "")
        validating = found.get(_PLURALS[rules.POLICY], "")
        self._versions = (mutating, validating if validating == rules.VERSION else "")
        self._asked = now
        return self._versions

    async def _write(
        self, services: Services, key: Key, wanted: Object, found: Object | None
    ) -> None:
        """Create or correct one object. Raises KubeError where the others cannot be written too."""
        written = self._written.get(key)
        if found is not None and _same(found, wanted, written):
            return
        profile = wanted["metadata"].get("annotations", {}).get(PROFILE, "")
        is_edited = found is not None and written is not None and written.wanted == wanted
        resource = _resource(key[0], wanted["apiVersion"].rpartition("/")[2])
        if services.dry_run:
            return
        try:
            if found is None:
                stored = await services.client.create(
                    resource.collection(), wanted, field_manager=NAME
                )
            else:
                version = found["metadata"]["resourceVersion"]
                body = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
                stored = await services.client.replace(resource.object(key[1]), body)
        except AlreadyExists:
            self._refused(
                services, profile, key[1], f"there is a {key[0]} {key[1]} that is not ours"
            )
            return
        except Conflict:  # the next look has the newer one
            self._changed.set()
            return
        except ApiError as err:
            if err.status not in (400, 413, 422):
                raise
            self._refused(services, profile, key[1], err.message or str(err))
            return
        self._written[key] = _Written(wanted, stored.get("spec") or {})
        log.info("policy.written", kind=key[0], name=key[1], edited=is_edited)
        if is_edited and profile:
            text = f"{key[0]} {key[1]} was changed by hand: taken back"
            self._emit(services, profile, "PolicyEdited", text)

    def _refused(self, services: Services, profile: str, name: str, text: str) -> None:
        """Note that the server takes no new policy; the old one stays."""
        if self._reasons_before.get(name) != text and name not in self._reject_reasons:
            log.warning("policy.refused", name=name, error=text)
            if profile:
                self._emit(services, profile, "PolicyRefused", text)
        self._reject_reasons[name] = self._problems[profile or name] = text

    async def _delete(self, services: Services, key: Key, old: Object, version: str) -> None:
        self._written.pop(key, None)
        if services.dry_run:
            return
        try:
            path = _resource(key[0], version).object(key[1])
            await services.client.delete(path, uid=old["metadata"]["uid"])
        except (NotFound, Conflict):
            return
        log.info("policy.deleted", kind=key[0], name=key[1])

    def _say(self, services: Services, wanted: Wanted) -> None:
        """Send an event for what is new about a profile."""
        said: dict[str, set[tuple[str, str]]] = {}
        for name, problem in wanted.problems.items():
            said.setdefault(name, set()).add(("InvalidProfile", problem))
        for name, notes in wanted.notes.items():
            said.setdefault(name, set()).update(notes)
        for name, texts in said.items():
            for reason, text in sorted(texts - self._said.get(name, set())):
                log.warning("profile.note", profile=name, reason=reason, message=text)
                self._emit(services, name, reason, text)
        self._said = said

    def _emit(self, services: Services, profile: str, reason: str, text: str) -> None:
        found = self._profiles.objects.get(profile)
        uid = str(found["metadata"].get("uid", "")) if found else ""
        about = ObjectRef(API_VERSION, KIND, profile, uid=uid)
        services.emit(Event(about, EventType.WARNING, reason, text, NAME))


class ColocationProfileController(ControllerPlugin):
    """Changes pods that wait for a node as profiles say, for those that came before their profile.

    Off by default. It is for profiles with the label config.koordinator.sh/controller-managed, or
    for all. The API server refuses what may not change, such as most of a pod's spec, and labels
    that are fixed by the pod rules: that is said once for each version of the profile.

    Source: Koordinator, pkg/controller/colocationprofile.
    """

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments."""
        self._clock = handle.clock
        self._services = handle.services
        self._refused: dict[tuple[str, str], float] = {}  # by version and pod: until when
        self._trouble = LastingFailure(log)
        if handle.services is not None:
            self._profiles = _profiles_informer(handle.services)
            self._namespaces = handle.services.informer(NAMESPACES)

    def health(self) -> PartHealth:
        return self._trouble.health()

    async def run(self, stop: Stop) -> None:
        services = self._services
        if services is None:
            return
        await stop.bound(self._profiles.wait_answered())
        await stop.bound(self._namespaces.wait_synced())
        async for _ in stop.every(services.profiles_interval):
            now = self._clock.monotonic()
            self._refused = {key: until for key, until in self._refused.items() if until > now}
            try:
                await self._look(services, stop)
            except KubeError as err:
                self._trouble.failed("profiles.not_applied", str(err), error=str(err))
            else:
                self._trouble.ended("profiles.applied_again")

    async def _look(self, services: Services, stop: Stop) -> None:
        """Change the pods of each profile, in the order of names. Raises KubeError."""
        left = BURST
        for name, item in sorted(self._profiles.objects.items()):
            labels = item["metadata"].get("labels") or {}
            is_managed = services.all_profiles or labels.get(CONTROLLER_MANAGED) == "true"
            # An absent selector is for all pods at their creation, and for none here, as there.
            if not is_managed or (item.get("spec") or {}).get("selector") is None:
                continue
            try:
                profile = parse_profile(item)
            except InvalidObject:  # ColocationProfilePolicies has said it
                continue
            version = f"{name} {item['metadata'].get('resourceVersion', '')}"
            async for page in services.client.pages(PODS.collection(), _WAITING, size=PAGE):
                for pod in page.items:
                    if stop.is_set():
                        return
                    if not await self._amend(services, profile, version, pod):
                        continue
                    left -= 1
                    if left < 0:
                        await stop.sleep(1 / RATE)

    async def _amend(self, services: Services, profile: Profile, version: str, pod: Object) -> bool:
        """Change one pod; return whether a request was sent. Raises KubeError."""
        meta = pod["metadata"]
        namespace = self._namespaces.objects.get(meta["namespace"])
        if namespace is None or meta.get("deletionTimestamp"):
            return False
        labels = namespace["metadata"].get("labels") or {}
        key = (version, str(meta.get("uid", "")))
        if (
            policies.EXCLUDED["key"] in labels
            or not profile.matches(meta.get("labels") or {}, labels)
            or profile.percent < 100
            or key in self._refused
        ):
            return False
        try:
            patch = merge_patch(pod, amend(pod, profile))
        except InvalidObject as err:
            self._refuse(key, profile, meta, str(err))
            return False
        if not patch or services.dry_run:
            return False
        # Another pod of the name, or another version of it, is looked at later.
        patch.setdefault("metadata", {})["uid"] = meta.get("uid")
        patch["metadata"]["resourceVersion"] = meta["resourceVersion"]
        path = PODS.object(meta["name"], namespace=meta["namespace"])
        try:
            await services.client.patch(path, patch, MERGE_PATCH, field_manager=NAME)
        except (NotFound, Conflict):
            return True
        except ApiError as err:
            if err.status not in (400, 422):
                raise
            self._refuse(key, profile, meta, err.message or str(err))
            return True
        log.info("pod.amended", profile=profile.name, namespace=meta["namespace"],
                 pod=meta["name"])  # fmt: skip
        return True

    def _refuse(
        self, key: tuple[str, str], profile: Profile, meta: Mapping[str, Any], text: str
    ) -> None:
        if len(self._refused) < MAX_REFUSED:
            self._refused[key] = self._clock.monotonic() + REMEMBERED
        log.warning("pod.not_amended", profile=profile.name, namespace=meta["namespace"],
                    pod=meta["name"], error=text)  # fmt: skip


def _profiles_informer(services: Services) -> SharedInformer[Object]:
    """Return the informer of ClusterColocationProfiles, whose CRD may be missing."""
    return services.informer(
        PROFILES,
        absent=MissingKind(pause=60.0, hint="install its CRD: there are no profiles"),
        without="there are no profiles",
    )


def _priority_classes(items: Iterable[Object]) -> Iterator[tuple[str, PriorityClass]]:
    for one in items:
        value = one.get("value", 0)
        if isinstance(value, int):
            policy = str(one.get("preemptionPolicy") or "PreemptLowerPriority")
            yield one["metadata"]["name"], PriorityClass(value, policy)


def _resource(kind: str, version: str) -> ApiResource:
    return ApiResource(f"{GROUP}/{version}", _PLURALS[kind])


def _same(found: Object, wanted: Object, written: _Written | None) -> bool:
    """Whether an object is as wanted, or as the server has stored what was wanted."""
    meta, mine = found["metadata"], wanted["metadata"]
    for part in ("labels", "annotations"):
        if not (mine.get(part) or {}).items() <= (meta.get(part) or {}).items():
            return False
    if "ownerReferences" in mine and meta.get("ownerReferences") != mine["ownerReferences"]:
        return False
    spec = found.get("spec")
    if spec == wanted["spec"]:
        return True
    return written is not None and written.wanted == wanted and spec == written.stored
