"""Inputs of place and simulate: the cluster, the pods of a manifest, and the profiles for them."""

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from koord.cluster import kinds as cluster_kinds
from koord.cluster.decoder import Decoder
from koord.cluster.dump import Dump, read_dump
from koord.cluster.facts import ClusterPod, PriorityClass
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.state import ClusterState
from koord.component.config.document import read_config
from koord.controlplane.cluster_access import InformerFactory, live_informers
from koord.controlplane.commands import (
    NOW_HELP,
    command_parser,
    print_message,
    register_installed,
    time_of,
    time_option,
)
from koord.controlplane.offline import (
    LIST_TIMEOUT,
    ClusterReadError,
    DumpInformers,
    find_cluster,
    read_cluster,
)
from koord.util.clock import SystemClock
from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded
from koord_scheduler import NAME
from koord_scheduler.config.configuration import Configuration, config_parser, parse_configuration
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.profile import (
    Additions,
    PluginRegistry,
    announce,
    fields_read,
    known_plugins,
)
from koord_scheduler.planning.simulation import (
    PlannedProfiles,
    default_plan_configuration,
    offline_services,
    plan_profiles,
)

MAX_FILE_BYTES = 16 << 20  # bytes
MAX_PODS = 200_000  # of all files

TEMPLATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job", "DaemonSet")
"""Kinds with a pod template, of which as many pods are made as they want; of a DaemonSet one."""

_NEXT_DOCUMENT = re.compile(rb"^---(?:[ \t].*)?$", re.MULTILINE)
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


def read_pods(
    path: Path, classes: Mapping[str, PriorityClass], kept: KeptFields = NO_FIELDS
) -> list[ClusterPod]:
    """Return the pods of a file of manifests, YAML or JSON, in their order; bound to no node.

    kept: what plugins read of them beyond what is always kept.

    Lists are read item by item, and workloads pod by pod. Without a priority a pod has that of its
    class, as admission would give it. What is there of a pod's status is left out.

    Raises:
        OptionError: the file cannot be read, or has no pod.
        InvalidObject: a document is malformed; the message names it.
    """
    try:
        data = read_bounded(path, MAX_FILE_BYTES)
    except FileReadError as err:
        hint = "name a file with the manifest of a pod, or of a workload"
        raise OptionError(str(path), err.found, hint) from err
    decoder = Decoder(kept)
    found: list[ClusterPod] = []
    for where, manifest in _objects(data, path.name):
        for one in _pods_of(manifest, where):
            if len(found) == MAX_PODS:
                raise OptionError(str(path), f"more than {MAX_PODS} pods", "name fewer")
            found.append(_read(decoder, one, classes))
    if not found:
        kinds = ", ".join(("Pod", *TEMPLATED))
        raise OptionError(str(path), "no pod", f"wanted manifests of {kinds}")
    return found


def _objects(data: bytes, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    parts = [part for part in _NEXT_DOCUMENT.split(data) if _has_content(part)]
    for number, part in enumerate(parts, 1):
        place = where if len(parts) == 1 else f"{where}, document {number}"
        yield from _items(decode(part, place), place)


def _items(value: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, dict):
        raise InvalidObject(where, wanted="an object with a kind", found=value)
    items = value.get("items")
    if str(value.get("kind", "")).endswith("List") and isinstance(items, list):
        for number, item in enumerate(items, 1):
            yield from _items(item, f"{where}, item {number}")
    else:
        yield where, value


def _has_content(part: bytes) -> bool:
    lines = (line.strip() for line in part.splitlines())
    return any(line and not line.startswith(b"#") for line in lines)


def _pods_of(manifest: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The manifests of its pods: of the pod itself, or of the template."""
    kind = manifest.get("kind")
    if kind == "Pod":
        yield dict(manifest)
        return
    if kind not in TEMPLATED:
        return
    spec = _mapping(manifest.get("spec"), f"{where}: spec")
    template = _mapping(spec.get("template"), f"{where}: spec.template")
    count = spec.get("parallelism" if kind == "Job" else "replicas")
    count = 1 if count is None or kind == "DaemonSet" else count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_PODS:
        wanted = f"a number of pods, at most {MAX_PODS}"
        raise InvalidObject(f"{where}: spec.replicas", wanted=wanted, found=count)
    own = _mapping(manifest.get("metadata"), f"{where}: metadata")
    name, meta = str(own.get("name", "")), _mapping(template.get("metadata"), where)
    owner = {"kind": kind, "name": name, "uid": f"planned-{kind}-{name}", "controller": True}
    for number in range(count):
        yield {
            "metadata": {
                **meta,
                "name": f"{name}-{number}",
                "namespace": own.get("namespace"),
                "ownerReferences": [owner],
            },
            "spec": template.get("spec"),
        }


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidObject(where, wanted="an object", found=value)
    return value


def _read(
    decoder: Decoder, manifest: dict[str, Any], classes: Mapping[str, PriorityClass]
) -> ClusterPod:
    pod = decoder.object(cluster_kinds.POD, json.dumps({**manifest, "status": {}}).encode())
    pod = replace(pod, node="", phase="Pending", uid=pod.uid or f"planned-{pod.key}")
    if pod.priority is not None:
        return pod
    spec = manifest.get("spec")
    name = spec.get("priorityClassName") if isinstance(spec, dict) else None
    return replace(pod, priority=_priority(name, classes, pod.key))


def _priority(name: object, classes: Mapping[str, PriorityClass], pod: str) -> int:
    """Source: Kubernetes, admission plugin Priority."""
    if not name:
        return next((one.value for one in classes.values() if one.is_default), 0)
    if isinstance(name, str) and name in classes:
        return classes[name].value
    if isinstance(name, str) and name in _SYSTEM_PRIORITIES:
        return _SYSTEM_PRIORITIES[name]
    known = ", ".join(sorted(classes)) or "none"
    raise InvalidObject(
        f"pod {pod}: priorityClassName", wanted=f"a class of the cluster: {known}", found=name
    )


SOURCE = """\
The cluster is the one that kubectl would ask, with the custom resources that plugins follow; one
that cannot be listed is a warning. With --from it is a dump, and no API server is asked: what
    kubectl get nodes,pods,nodemetrics,priorityclasses,namespaces,pvc,pv,storageclasses \\
        -A -o json > cluster.json
prints. Name the custom resources that plugins of the configuration follow there, too, such as
noderesourcetopologies and devices."""


class PlanOptions(argparse.Namespace):
    """The options of a command line."""

    pods: Path
    source: Path | None = None  # None: the live cluster
    kubeconfig: str = ""  # "": as kubectl finds it
    config: Path | None = None  # None: the defaults
    now: float | None = None  # Unix seconds; None: of the newest NodeMetric
    output: Literal["table", "json"] = "table"


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A cluster, pods that are not in it yet, and what decides about them."""

    pods: tuple[ClusterPod, ...]
    profiles: PlannedProfiles
    services: Services
    dump: Dump | None  # None: the cluster is a live one


def options_parser(name: str, about: str, pods_help: str) -> argparse.ArgumentParser:
    """A parser with the options of PlanOptions; a command adds its own."""
    parser = command_parser(name, f"{about}\n{SOURCE}")
    add = parser.add_argument
    add("pods", type=Path, metavar="PODS.yaml", help=pods_help)
    add("--from", dest="source", type=Path, metavar="DUMP", help=_SOURCE_HELP)
    add("--kubeconfig", metavar="FILE", help="of the live cluster; by default as kubectl finds it")
    add("--config", type=Path, metavar="FILE", help=_CONFIG_HELP)
    add("--now", type=time_option, metavar="TIME", help=NOW_HELP)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return parser


@asynccontextmanager
async def plan_inputs(
    name: str, options: PlanOptions, additions: Additions = ()
) -> AsyncIterator[PlanInputs]:
    """Read everything that the options name, and make the plugins.

    name is the command's, for warnings. additions are called after the installed plugins.

    Raises:
        KoordError: something cannot be read, or a plugin cannot be made.
    """
    found = register_installed(name, PluginRegistry())
    for add in additions:
        add(found)
    configured = _configured(name, options, found)
    kept = fields_read((configured or _default_configuration(found, (NAME,))).profiles, found)
    dump, cluster, now = await _cluster(name, options, kept)
    pods = await asyncio.to_thread(read_pods, options.pods, cluster.priority_classes, kept)
    schedulers = (one.scheduler_name for one in pods)
    configuration = configured or _default_configuration(found, schedulers)
    time = now if options.now is None else options.now
    async with _informers(name, options, dump) as informers:
        services = offline_services(cluster, time, kept, informers)
        profiles = await plan_profiles(configuration.profiles, found, services)
        try:
            if isinstance(informers, InformerFactory):
                await _listed(name, informers, services)
            announce(services)
            await services.hooks.run()
            yield PlanInputs(tuple(pods), profiles, services, dump)
        finally:
            await profiles.close()


@asynccontextmanager
async def _informers(
    name: str, options: PlanOptions, dump: Dump | None
) -> AsyncIterator[DumpInformers | InformerFactory]:
    """Informers of the custom resources that plugins follow."""
    if dump is not None:
        yield DumpInformers(dump)
        return
    async with live_informers(find_cluster(options.kubeconfig), name) as found:
        yield found


async def _listed(name: str, informers: InformerFactory, services: Services) -> None:
    """Wait for the lists of all custom resources; what cannot be listed is a warning."""
    try:
        async with asyncio.timeout(LIST_TIMEOUT):
            await informers.wait_synced()
    except TimeoutError as err:
        raise ClusterReadError(informers.start_health().reason) from err
    found = services.custom_resources.health()
    if found.reason:
        print_message(name, f"warning: {found.reason}")


async def _cluster(
    name: str, options: PlanOptions, kept: KeptFields
) -> tuple[Dump | None, ClusterState, float]:
    """The dump, the cluster, and its time in Unix seconds."""
    now = SystemClock().wall()
    if options.source is None:
        config = find_cluster(options.kubeconfig)
        warn = partial(print_message, f"{name}: warning")
        return None, await read_cluster(config, name, warn, kept=kept), now
    dump = await asyncio.to_thread(read_dump, options.source, kept)
    return dump, dump.cluster, time_of(dump, options.source)


def _default_configuration(registry: PluginRegistry, schedulers: Iterable[str]) -> Configuration:
    known = known_plugins(registry)
    defaults = default_plan_configuration(dict.fromkeys(schedulers), known)
    return parse_configuration(defaults, Path("the default configuration"), known).configuration


def _configured(name: str, options: PlanOptions, registry: PluginRegistry) -> Configuration | None:
    """The configuration of a file; None: the options name none."""
    if options.config is None:
        return None
    read = read_config(options.config, config_parser(known_plugins(registry), {}))
    for fault in read.warnings:
        print_message(name, f"warning: {fault}")
    return read.configuration


_SOURCE_HELP = "a file or a directory of files that kubectl has printed, JSON or YAML"
_CONFIG_HELP = (
    "a KubeSchedulerConfiguration; without one, the default plugins and LoadAwareScheduling for "
    "whichever scheduler a pod names"
)
