"""Kernel values in detail: reads, files of a plugin's own, and their types."""

from koordlet.executor.kernel.view import Kernel, Reading
from koordlet.host.cgroups.layout import Layout
from koordlet.host.kernelfile import KernelFile
from koordlet.host.resource import Resource
from koordlet.host.valueforms import NumberOrMax, OneWord, WholeNumber

__all__ = [
    "Kernel",
    "KernelFile",
    "Layout",
    "NumberOrMax",
    "OneWord",
    "Reading",
    "Resource",
    "WholeNumber",
]
