"""The helper's program: calls NVML, and answers each line of its input with a line of JSON.

NVML waits for the driver without a limit and may crash the process, so the daemon never loads it.
This file is run as a script and imports nothing of the daemon.

Source: NVML API reference; Koordinator pkg/koordlet/metricsadvisor/devices/gpu.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

MAX_PROCESSES = 4096  # of one GPU
MAX_EVENTS = 64  # in one response
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # faults of programs, not of the GPU
LOST, NO_CHECK = "DeviceLost", "DeviceHealthCheckNotSupported"
_REOPEN_AFTER = 30  # answers with a lost GPU, after which all are looked for again
_PR_SET_PDEATHSIG = 1


class GpuSource:
    """Answers with all GPUs, their health, and what their processes use."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: list[_GpuHandle] | None = None  # None: NVML is not open
        self._driver = ""
        self._events: Any = None
        self._lost = 0

    def answer(self) -> dict[str, object]:
        """The present state; what went wrong under "error"."""
        try:
            gpus = self._open()
            self._take_events(gpus)
            found = [gpu.state(self._nvml) for gpu in gpus]
        except self._nvml.NVMLError as err:
            self._close()
            return {"error": f"NVML: {err}"}
        self._lost = self._lost + 1 if any(gpu["error"] == LOST for gpu in found) else 0
        if self._lost >= _REOPEN_AFTER:
            self._close()
        return {"driver": self._driver, "gpus": found}

    def _open(self) -> "list[_GpuHandle]":
        if self._gpus is None:
            nvml = self._nvml
            nvml.nvmlInit()
            self._driver = nvml.nvmlSystemGetDriverVersion()
            self._events = nvml.nvmlEventSetCreate()
            self._gpus = [
                _GpuHandle(nvml, nvml.nvmlDeviceGetHandleByIndex(index), self._events)
                for index in range(nvml.nvmlDeviceGetCount())
            ]
        return self._gpus

    def _close(self) -> None:
        self._gpus, self._lost = None, 0
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # it was not open

    def _take_events(self, gpus: "list[_GpuHandle]") -> None:
        nvml = self._nvml
        for _ in range(MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
            except nvml.NVMLError:
                return  # none is waiting, or the GPU it would come from is lost
            xid = int(event.eventData)
            if event.eventType != nvml.nvmlEventTypeXidCriticalError or xid in HARMLESS_XIDS:
                continue
            uuid = _uuid(nvml, event.device)
            for gpu in gpus:  # one that cannot be named may be any
                if uuid in ("", gpu.uuid) and not gpu.error:
                    gpu.error = f"Xid{xid}"


class _GpuHandle:
    """One GPU."""

    def __init__(self, nvml: Any, handle: Any, events: Any) -> None:
        self._handle = handle
        self._seen = 0  # microseconds: the latest sample of utilization
        self.uuid = nvml.nvmlDeviceGetUUID(handle)
        self.error = ""
        self._facts = {
            "uuid": self.uuid,
            "minor": nvml.nvmlDeviceGetMinorNumber(handle),
            "model": nvml.nvmlDeviceGetName(handle),
            "memory": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "bus": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        }
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError_NotSupported:
            self.error = NO_CHECK

    def state(self, nvml: Any) -> dict[str, object]:
        error, processes = self.error, []
        try:
            processes = self._processes(nvml)
        except nvml.NVMLError_GpuIsLost:
            error = error or LOST
        return {**self._facts, "error": error, "processes": processes}

    def _processes(self, nvml: Any) -> list[tuple[int, float, int]]:
        """(pid, percent of the GPU's cores, bytes) of each process that computes on it."""
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except nvml.NVMLError_NotSupported:
            return []
        shares = self._shares(nvml)
        found = [
            (int(each.pid), shares.get(int(each.pid), 0.0), int(each.usedGpuMemory or 0))
            for each in running
        ]
        return found[:MAX_PROCESSES]

    def _shares(self, nvml: Any) -> dict[int, float]:
        """Mean utilization since the last response, by process; none where it is not known."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
            return {}
        found: dict[int, list[int]] = {}
        for sample in samples:
            if sample.timeStamp > self._seen:
                found.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        self._seen = max((int(sample.timeStamp) for sample in samples), default=self._seen)
        return {pid: sum(values) / len(values) for pid, values in found.items()}


def _uuid(nvml: Any, handle: Any) -> str:
    try:
        return _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return ""


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Answer until the input ends. What NVML prints goes nowhere."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    source: GpuSource | None = None
    while sys.stdin.buffer.readline():
        if source is None:
            try:
                import pynvml
            except ImportError:
                missing = "wanted the Python package nvidia-ml-py, found none; "
                print(
                    json.dumps({"error": missing + "install koordlet[nvml]"}),
                    file=responses,
                    flush=True,
                )
                continue
            source = GpuSource(pynvml)
        print(json.dumps(source.answer()), file=responses, flush=True)


if __name__ == "__main__":
    main()
