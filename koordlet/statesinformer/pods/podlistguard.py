"""Guard against pod lists that are wrong for a moment, such as those of a starting kubelet."""

from collections.abc import Sequence

from koord.api.pods.pod import Pod, PodList
from koord.util.alarm import Alarm
from koord.util.logs import get_logger

SECOND_LOOK = 5.0  # seconds until a list is asked for again that has lost all pods at once

log = get_logger("koordlet.statesinformer")


class PodListGuard:
    """Holds the latest accepted list of pods, from whichever source.

    A list without any pod of the API server, after one with some, is accepted only when the next
    list says the same: a kubelet that has just started lists only static pods at first, or none.
    """

    def __init__(self, news: Alarm) -> None:
        self._news = news  # set whenever there is something new to poll
        self._believed: PodList | None = None
        self._handed_out: PodList | None = None
        self.doubt = ""  # why the latest list is not accepted yet; the next one decides

    @property
    def is_empty(self) -> bool:
        """Whether there was no list yet."""
        return self._believed is None

    def poll(self) -> PodList | None:
        """Return the list when it has changed since the last call. For any thread."""
        believed = self._believed
        if believed is self._handed_out:
            return None
        self._handed_out = believed
        return believed

    def take(self, found: PodList, *, is_certain: bool = False) -> bool:
        """Take a list. False: it is doubted, so request another one in SECOND_LOOK seconds.

        is_certain: the end of each missing pod was reported, so the list is accepted as it is.
        """
        before = self._pods
        lost = "" if is_certain or self.doubt else _lost(before, found[0])
        if lost:
            log.warning("pods.vanished", pods=len(before), which=lost, note="kept until seen twice")
            self.doubt = f"{lost} vanished at once; looking again"
            return False
        self.doubt = ""
        if found != self._believed:
            self._believed = found
            self._news.set()
        return True

    @property
    def _pods(self) -> tuple[Pod, ...]:
        return self._believed[0] if self._believed else ()


def _lost(before: Sequence[Pod], now: Sequence[Pod]) -> str:
    """Return words for the pods that are gone, if too many are; "": the list is plausible."""
    if before and not now:
        return "all pods"
    if all(pod.static for pod in now) and not all(pod.static for pod in before):
        return "all pods but static ones"
    return ""
