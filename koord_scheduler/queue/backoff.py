"""How long a pod waits after an attempt that failed.

Source: Kubernetes, pkg/scheduler/backend/queue/backoff_queue.go.
"""

import math
from dataclasses import dataclass

from koord_scheduler.framework.queuedpod import QueuedPod


@dataclass(frozen=True, kw_only=True, slots=True)
class BackoffOptions:
    """Seconds. The wait doubles with each attempt."""

    initial: float = 1.0
    most: float = 10.0  # 0: there is no backoff
    initial_cut: float = 5.0  # after an attempt that was ended for time
    most_cut: float = 300.0

    def wait(self, queued: QueuedPod) -> float:
        """Seconds from the last attempt: by its rejections, or by its errors if they came last, or
        by the attempts that were ended for time.
        """
        if queued.cuts:
            return min(self.initial_cut * 2.0 ** min(queued.cuts - 1, 63), self.most_cut)
        count = queued.consecutive_errors or queued.unschedulable_count
        if not count or not self.most:
            return 0.0
        return min(self.initial * 2.0 ** min(count - 1, 63), self.most)

    def expiry(self, queued: QueuedPod) -> float:
        """Monotonic seconds at which the wait ends: whole ones, so that pods of a second go on
        together, in their order.
        """
        seconds = self.wait(queued)
        return math.floor(queued.timestamp + seconds) if seconds else queued.timestamp
