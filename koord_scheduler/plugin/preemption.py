"""Preemption: what-ifs of nodes without some of their pods, and the choice of victims."""

from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.handle import NodeFilters, PreemptionTrial
from koord_scheduler.framework.preemptions import Preemption, Preemptions, preempted
from koord_scheduler.framework.status import ABSENT, Diagnosis, NodeStatuses
from koord_scheduler.rules.preemption import (
    BudgetsByNamespace,
    Candidate,
    LowerPriorityPods,
    by_namespace,
    candidates_wanted,
    choose,
    find_victims,
    may_preempt,
    not_reprieved,
    violated_budgets,
)

__all__ = [
    "ABSENT",
    "BudgetsByNamespace",
    "Candidate",
    "Diagnosis",
    "ExtensionPointError",
    "LowerPriorityPods",
    "NodeFilters",
    "NodeStatuses",
    "Preemption",  # argument of Preemptions.begin
    "PreemptionTrial",
    "Preemptions",  # carries them out, for all plugins of a process
    "by_namespace",
    "candidates_wanted",
    "choose",
    "find_victims",
    "may_preempt",
    "not_reprieved",
    "preempted",
    "violated_budgets",
]
