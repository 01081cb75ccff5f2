"""The agent's config file while it runs: gates, dry-run, budget and log levels change at once."""

from collections.abc import Collection, Mapping

from koord.component.config.document import ConfigDocument
from koord.component.config.flagdocument import LiveFlags, parse_flag_document
from koord.component.config.follower import ConfigFollower
from koord.util.logs import get_logger, parse_levels, set_levels
from koordlet.daemon.settings.settings import Settings

LIVE_KEYS = frozenset(
    {"feature-gates", "qos-extension-plugins", "log-level", "dry-run", "evict-budget-per-hour"}
)
DRY_RUN = "dry-run"

LiveConfig = ConfigFollower[ConfigDocument]

log = get_logger("koordlet.daemon")


def follow_config(settings: Settings, config: ConfigDocument) -> LiveConfig:
    """Return what follows the config file that the agent has started with."""

    def gate_values() -> Mapping[str, bool]:
        values = settings.plugins.gate_values(settings.options.feature_gates.value)
        settings.plugins.check_names(DRY_RUN, settings.options.dry_run.value.plugins)
        return values

    def applied(read: ConfigDocument, changed: Collection[str]) -> None:
        if DRY_RUN in read.values or DRY_RUN in changed:
            _forget_switches(settings)
        set_levels(parse_levels(settings.options.log_level.value))

    live = LiveFlags(
        settings.flags,
        settings.gates,
        config,
        live=LIVE_KEYS,
        gate_values=gate_values,
        applied=applied,
    )
    return ConfigFollower(config.path, parse_flag_document, live.apply)


def _forget_switches(settings: Settings) -> None:
    """A file with an entry for dry-run, or one that has lost it, wins over the control socket."""
    forgotten = settings.dry_run.forget()
    if forgotten:
        log.warning("dry_run.as_configured", switched_by_hand_before=dict(forgotten))
