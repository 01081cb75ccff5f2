"""Claims in detail: outcomes, parts of a combined value, and their wording in the audit log."""

from koordlet.executor.audit.wording import Wording
from koordlet.executor.claims.claim import ClaimOutcome, ClaimState, Part

__all__ = ["ClaimOutcome", "ClaimState", "Part", "Wording"]
