"""The plugin that says which pod is tried next, if the profiles have one."""

from collections.abc import Sequence
from typing import cast

from koord_scheduler.config.points import Point
from koord_scheduler.framework.calls import Loaded
from koord_scheduler.framework.extension.pods import NextPodPlugin
from koord_scheduler.framework.profiles.profile import ProfileError, ProfilePlugins


class NextPod:
    """Asks the instance of the first profile that has the plugin."""

    def __init__(self, profile: ProfilePlugins, loaded: Loaded) -> None:
        self._calls = profile.calls
        self._loaded = loaded
        self._plugin = cast(NextPodPlugin, loaded.plugin)

    def uid(self) -> str | None:
        """The uid of the next pod; None: the queue's own order, as when the plugin fails."""
        try:
            return self._loaded.code.call(self._plugin.next_pod)
        except Exception as err:
            self._calls.failed(self._loaded, Point.QUEUE_SORT, err)
            return None


def next_pod_of(profiles: Sequence[ProfilePlugins]) -> NextPod | None:
    """Return what asks for the next pod; None: no profile has such a plugin.

    Raises:
        ProfileError: profiles have different ones.
    """
    found: dict[str, ProfilePlugins] = {}
    for profile in profiles:
        for name, plugin in profile.plugins.items():
            if isinstance(plugin, NextPodPlugin):
                found.setdefault(name, profile)
    if len(found) > 1:
        names = ", ".join(sorted(found))
        wanted = "wanted one plugin that says which pod is next, in all profiles together"
        raise ProfileError(profiles[-1].settings.scheduler_name, [f"{wanted}, found {names}"])
    for name, profile in found.items():
        return NextPod(profile, profile.loaded(name))
    return None
