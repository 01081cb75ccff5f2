"""ManagerConfiguration, the file of --config, and the feature gates.

slo-controller-config has the strategies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from koord.component.config import componentconfig
from koord.component.config.componentconfig import Int32, to_json
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    duplicate,
    invalid,
    required,
    warning,
)
from koord.component.flags import FeatureGates, FeatureSpec, Stage
from koord.component.plugins.args import ArgsType
from koord.controlplane import sections
from koord.controlplane.sections import ClientConnection, ConfigFormat, check_sections
from koord_manager import LEASE, NAME

GROUP_VERSION = "manager/v1alpha1"
KIND = "ManagerConfiguration"
DEFAULT_PORT = 10252
KnownPlugins = Mapping[str, ArgsType | None]
"""The plugins by name, with the type of their arguments; None: any object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection(sections.LeaderElection):
    """One of several replicas, or Koordinator's koord-manager, holds the Lease and works."""

    resource_name: str = LEASE  # name of the Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """The arguments of one plugin."""

    name: str = ""  # of the plugin
    args: object = None  # see the plugin; not set: its defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerConfiguration:
    """The configuration of one koord-manager."""

    leader_election: LeaderElection = LeaderElection()  # see below
    client_connection: ClientConnection = ClientConnection()  # see below
    dry_run: bool = False  # decide, but write nothing
    max_decrease_percent: Int32 = 30  # of an offer, by one report; 100: as much as it says
    plugin_config: tuple[PluginConfig, ...] = ()  # arguments, one entry for a plugin

    def complete(self) -> Self:
        """Return it with all defaults."""
        return replace(
            self,
            leader_election=self.leader_election.complete(),
            client_connection=self.client_connection.complete(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration in force."""

    leader_election: LeaderElection
    client_connection: ClientConnection
    dry_run: bool
    max_decrease_percent: int
    args: Mapping[str, object] = field(default_factory=dict)  # by plugin


def convert(
    external: ManagerConfiguration, known: KnownPlugins
) -> tuple[Configuration | None, list[FieldError]]:
    """Return the configuration that a completed document means, and its faults."""
    faults = list(check_sections(external.leader_election, external.client_connection))
    percent = external.max_decrease_percent
    if not 1 <= percent <= 100:
        faults.append(invalid(("maxDecreasePercent",), percent, "wanted 1 to 100 percent"))
    args: dict[str, object] = {}
    for index, one in enumerate(external.plugin_config):
        place = ("pluginConfig", index)
        if not one.name:
            faults.append(required((*place, "name")))
        elif one.name in args:
            faults.append(duplicate((*place, "name"), one.name))
        elif one.name not in known:
            faults.append(warning(place, f'"{one.name}" is configured, but there is none'))
        else:
            found, wrong = _args(known[one.name], one.args, (*place, "args"))
            args[one.name] = found
            faults += wrong
    for name, args_type in known.items():
        if args_type is not None and name not in args:
            args[name], wrong = args_type.read(None, ("pluginConfig", name, "args"))
            faults += wrong
    found = Configuration(
        leader_election=external.leader_election,
        client_connection=external.client_connection,
        dry_run=external.dry_run,
        max_decrease_percent=percent,
        args=args,
    )
    return found, faults


def _args(
    args_type: ArgsType | None, value: object, path: FieldPath
) -> tuple[object, list[FieldError]]:
    if args_type is not None:
        return args_type.read(value, path)
    if value is None or isinstance(value, dict):
        return value or {}, []
    return None, [invalid(path, value, "wanted an object")]


ReadConfig = componentconfig.ReadConfig[Configuration]
FORMAT: ConfigFormat[ManagerConfiguration, KnownPlugins, Configuration] = ConfigFormat(
    document=ManagerConfiguration, group_version=GROUP_VERSION, kind=KIND, convert=convert
)


def to_document(config: Configuration) -> dict[str, object]:
    """Return the document of a configuration as JSON values that read back."""
    external = ManagerConfiguration(
        leader_election=config.leader_election,
        client_connection=config.client_connection,
        dry_run=config.dry_run,
        max_decrease_percent=config.max_decrease_percent,
        plugin_config=tuple(
            PluginConfig(name=name, args=to_json(args)) for name, args in config.args.items()
        ),
    )
    return FORMAT.to_json(external)


# Source: Koordinator, pkg/features (koord-manager).
_ON = FeatureSpec(default=True, stage=Stage.BETA)
GATES = {
    "EnableSyncGPUSharedResource": FeatureSpec(),
    "PodMutatingWebhook": _ON,
    "PodValidatingWebhook": _ON,
    "ColocationProfileSkipMutatingResources": FeatureSpec(),
    "ColocationProfileSkipValidatingPriority": FeatureSpec(),
    "DisableDeviceResourceSpec": FeatureSpec(),
    "DisableExtendedResourceSpec": FeatureSpec(),
    "ValidatePodDeviceResource": FeatureSpec(),
}
# Koordinator's, of which there is nothing here: known, so that its command lines start this daemon.
NOT_BUILT = (
    "BindingAdmissionWebhook",
    "ConfigMapValidatingWebhook",
    "EnablePodEnhancedValidator",
    "EnableQuotaAdmission",
    "EnableQuotaAdmissionOnUpdate",
    "MultiQuotaTree",
    "NodeMutatingWebhook",
    "NodeValidatingWebhook",
)


_OFF = {"ColocationProfileController"}  # plugins that are off by default, as there


def feature_gates(plugins: Iterable[str]) -> FeatureGates:
    """Return the table, all at their defaults. plugins: names of gates that are on by default."""
    on = {name: FeatureSpec() if name in _OFF else _ON for name in plugins}
    absent = {name: FeatureSpec() for name in (*NOT_BUILT, *_OFF) if name not in on}
    gates = FeatureGates({**GATES, **absent, **on}, NAME)
    gates.mark_built(set(gates.names()) - absent.keys())
    return gates
