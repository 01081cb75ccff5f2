"""Kernel values in detail: reads, own files, parts and outcomes of claims, local storage.

The metric cache has the storage while the gate BlkIOReconcile is on:
`cache.get(NODE_LOCAL_STORAGE)` is a LocalStorage, or None before the first look.
"""

from koordlet.collectors.node_info import NODE_LOCAL_STORAGE
from koordlet.executor.claims.claim import AuditText, ClaimOutcome, ClaimState, Part
from koordlet.executor.kernel.view import Kernel, WatchedValue
from koordlet.host.cgroups.layout import Layout
from koordlet.host.kernelfile import ChoiceForm, IntegerForm, IntegerOrMaxForm, KernelFile
from koordlet.host.resource import Resource
from koordlet.host.storage import LocalStorage

__all__ = [
    "NODE_LOCAL_STORAGE",
    "AuditText",
    "ChoiceForm",  # of a file of your own, which takes one of some words
    "ClaimOutcome",
    "ClaimState",
    "IntegerForm",  # of a file of your own, which takes a number
    "IntegerOrMaxForm",
    "Kernel",
    "KernelFile",
    "Layout",
    "LocalStorage",
    "Part",
    "Resource",
    "WatchedValue",
]
