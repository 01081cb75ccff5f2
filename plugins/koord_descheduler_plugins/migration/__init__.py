"""MigrationController: moves pods by PodMigrationJobs, within quotas."""

from koord_descheduler.plugin import PluginRegistry
from koord_descheduler_plugins.migration.controller import MigrationController


def register(registry: PluginRegistry) -> None:
    """Register the plugin under the name that profiles use."""
    registry.register("MigrationController", MigrationController)
