"""An alert."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule. summary may have Prometheus' templates; the rest is for its page."""

    name: str
    expr: str  # PromQL
    wait: str  # how long it must hold, in Prometheus' form
    severity: Severity
    summary: str
    meaning: str
    action: str
