"""Settings of a leader election.

Source: Kubernetes, client-go tools/leaderelection, and component-base LeaderElectionConfiguration.
"""

import uuid
from dataclasses import dataclass

from koord.util.errors import OptionError

JITTER = 1.2  # most that a pause between two attempts to acquire is lengthened by, as a share
LONGEST_DURATION = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ElectionConfig:
    """Settings of one candidate. Times in seconds.

    A leader that fails stops its work within renew_deadline after the last renewal that the server
    confirmed, and another candidate leads not before lease_duration after it saw that renewal.
    """

    namespace: str
    name: str
    identity: str
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            OptionError: a name is empty, or the times do not fit one another.
        """
        for flag, text in (
            ("leader-elect-resource-namespace", self.namespace),
            ("leader-elect-resource-name", self.name),
            ("identity", self.identity),
        ):
            if not text:
                raise OptionError(flag, text, "leader election needs a name here")
        if not 1 <= self.lease_duration <= LONGEST_DURATION:
            hint = f"use 1s to {LONGEST_DURATION / 3600:g}h"
            raise OptionError("leader-elect-lease-duration", self.lease_duration, hint)
        if not self.renew_deadline < self.lease_duration:
            hint = f"use less than the lease duration, which is {self.lease_duration:g} s"
            raise OptionError("leader-elect-renew-deadline", self.renew_deadline, hint)
        if self.retry_period <= 0:
            raise OptionError("leader-elect-retry-period", self.retry_period, "use more than 0s")
        if not self.renew_deadline > JITTER * self.retry_period:
            hint = f"use more than {JITTER:g} retry periods of {self.retry_period:g} s"
            raise OptionError("leader-elect-renew-deadline", self.renew_deadline, hint)

    @property
    def lease(self) -> str:
        """Namespace and name of the Lease, for people."""
        return f"{self.namespace}/{self.name}"


def unique_identity(hostname: str) -> str:
    """Return an identity that no other candidate has, nor this one after its next start."""
    return f"{hostname}_{uuid.uuid4()}"
