"""Flags, gates and claim scopes of the plugins, before the first plugin is set up."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from koord.component.flags import ALL_OF_STAGE, FeatureGates, FeatureSpec, Flag, FlagSet
from koord.component.plugins.execution import LOADING, time_limit
from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock
from koord.util.errors import OptionError, error_text
from koord.util.logs import get_logger
from koord.util.text import nearest, snake_case
from koordlet.doctor.support import Claimable
from koordlet.features import INJECTORS
from koordlet.plugin.base import PluginContext
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.registry import PluginRegistry, Registration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


FLAG = "qos-extension-plugins"


class QOSExtensionConfig:
    """Gives each plugin its logger and metrics, collects its flags, and joins the gate tables.

    failures has, by feature, the plugins that could not be prepared and are left out.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        gates: FeatureGates,
        *,
        clock: Clock,
        metrics: "CollectorRegistry",
        init_timeout: float = LOADING,
    ) -> None:
        """init_timeout: seconds that init_flags of one plugin may take."""
        self.registry = registry
        self.gates = gates
        self.clock = clock
        self.metrics = metrics
        self.failures: dict[str, str] = {}
        self._init_timeout = init_timeout
        self._switches: Flag[Mapping[str, bool]] | None = None

    def init_flags(self, flags: FlagSet) -> None:
        """Call init_flags of all plugins and define --qos-extension-plugins.

        Raises:
            OptionError: the flag is defined already.
        """
        for registration in self.registry:
            if registration.error:
                self._stand_in(registration, flags)
                continue
            try:
                with time_limit(self._init_timeout):
                    self._prepare(registration, flags)
            except (Exception, SystemExit, PluginBlocked) as err:  # third-party code
                self.failures[registration.name] = f"init_flags: {error_text(err)}"
        known = ", ".join(registration.name for registration in self.registry)
        self._switches = flags.bool_map(
            FLAG, {}, f"Plugins to switch on or off, like A=true,B=false. Installed: {known}"
        )

    def gate_values(self, feature_gates: Mapping[str, bool]) -> dict[str, bool]:
        """Join --feature-gates and --qos-extension-plugins into values for the gate table.

        AllAlpha and AllBeta in --qos-extension-plugins mean the plugins of that stage that have no
        value of their own.

        Raises:
            OptionError: a plugin is unknown, or the two flags disagree about one.
        """
        switches = dict(self._switches.value) if self._switches else {}
        specs = {entry.name: entry.spec for entry in self.registry if entry.spec is not None}
        for name, value in switches.items():
            if name not in specs and name not in ALL_OF_STAGE:
                hint = f"no plugin of this name; the nearest is {nearest(name, specs)!r}"
                raise OptionError(FLAG, name, hint)
            if name not in ALL_OF_STAGE and feature_gates.get(name, value) != value:
                found = f"{name}={str(value).lower()}"
                raise OptionError(
                    FLAG, found, "--feature-gates says the opposite; drop one of them"
                )
        groups = {
            name: switches[group]
            for group, stage in ALL_OF_STAGE.items()
            if group in switches
            for name, spec in specs.items()
            if spec.stage is stage
        }
        explicit = {name: value for name, value in switches.items() if name not in ALL_OF_STAGE}
        return {**groups, **feature_gates, **explicit}

    def names(self) -> list[str]:
        """The installed plugins, by name."""
        return sorted(registration.name for registration in self.registry)

    def acting_names(self) -> list[str]:
        """Return the names that can be in dry-run: installed plugins, and enabled injectors."""
        return [*self.names(), *filter(self.gates.enabled, INJECTORS)]

    def check_names(self, option: str, names: Iterable[str]) -> None:
        """Check that all names are those of what can be in dry-run.

        Raises:
            OptionError: one is not.
        """
        known = [*self.names(), *INJECTORS]
        for name in names:
            if name not in known:
                hint = f"no plugin of this name; the nearest is {nearest(name, known)!r}"
                raise OptionError(
                    option, name, hint if self.names() else "no plugins are installed"
                )

    def _stand_in(self, registration: Registration, flags: FlagSet) -> None:
        """Let the gate and the flags of a plugin that could not be loaded be set all the same.

        It may be back with the next upgrade; its configuration is no reason not to start.
        """
        name = registration.name
        self.failures[name] = f"could not be loaded: {registration.error}"
        if name not in self.gates.names():
            self.gates.add(name, FeatureSpec(), owner=registration.source)
        self.gates.mark_built([name])  # the state of the plugin says what is wrong with it
        flags.expect(snake_case(name).replace("_", "-"), f"plugin {name}")

    def _prepare(self, registration: Registration, flags: FlagSet) -> None:
        plugin, name = registration.plugin, registration.name
        plugin.bind(
            PluginContext(
                log=get_logger(name),
                metrics=PluginMetrics(name, self.metrics),
                clock=self.clock,
                gate_is_on=self.gates.enabled,
            )
        )
        if registration.spec is not None:
            self.gates.add(name, registration.spec, owner=registration.source)
        gates = (*registration.gates, *plugin.modes)
        unknown = [gate for gate in gates if gate not in self.gates.names()]
        if unknown:
            hint = f"no such gate, wanted by plugin {name} from {registration.source}"
            raise OptionError("gates", unknown, hint)
        self.gates.mark_built(gates)
        plugin.init_flags(flags.owned_by(f"plugin {name}"))


def claimable_by_others(registrations: Iterable[Registration]) -> list[Claimable]:
    """Return each value once per plugin; those of shipped plugins are in the doctor's own table."""
    return [
        Claimable(each.name, each.gates, may.resource)
        for each in registrations
        if each.origin.distribution != PluginRegistry.shipped
        for may in each.plugin.may_claim
    ]
