"""Statuses that plugins answer with, checked."""

from koord.component.plugins.errors import PluginError
from koord_scheduler.framework.status import SUCCESS, Code, Status


class StatusFailed(PluginError):
    """A plugin answered with a status that ends the cycle."""

    def __init__(self, plugin: str, status: Status) -> None:
        super().__init__(status.message, plugin)
        self.status = status


def status_of(answer: object, plugin: str, *extra: Code) -> Status:
    """Return an answer as a status that names its plugin; None is Success.

    extra: codes beside Success, Error and the rejections that are right at this extension point.

    Raises:
        PluginError: it is no status, or has a code that is wrong here.
    """
    if answer is None:
        return SUCCESS
    if not isinstance(answer, Status):
        hint = "; return Status.unschedulable(…)" if isinstance(answer, str) else ""
        raise PluginError(
            f"plugin {plugin}: wanted a Status or None, found {answer!r:.80}{hint}", plugin
        )
    if answer.ok or answer.rejected or answer.code is Code.ERROR or answer.code in extra:
        return answer.of(plugin)
    raise PluginError(f"plugin {plugin}: found {answer.code.title}, which is wrong here", plugin)
