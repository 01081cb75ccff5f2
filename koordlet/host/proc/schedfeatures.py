"""Scheduler features: one kernel file lists them all, with NO_X for X that is off.

Source: kernel, kernel/sched/features.h and debug.c; Alibaba Cloud Linux, group identity.
"""

from collections.abc import Callable

from koordlet.host.kerneltext import Text

_MAINLINE = """
ALT_PERIOD ATTACH_AGE_LOAD BASE_SLICE CACHE_HOT_BUDDY DOUBLE_TICK GENTLE_FAIR_SLEEPERS HRTICK
HRTICK_DL LAST_BUDDY LATENCY_WARN LB_MIN NEXT_BUDDY NONTASK_CAPACITY RT_PUSH_IPI RT_RUNTIME_SHARE
SIS_AVG_CPU SIS_PROP START_DEBIT TTWU_QUEUE UTIL_EST UTIL_EST_FASTUP WAKEUP_PREEMPTION
WARN_DOUBLE_CLOCK WA_BIAS WA_IDLE WA_WEIGHT
"""
_ANOLIS = """
CORE_SCHED ID_ABSOLUTE_EXPEL ID_BOOK_CPU ID_EXPELLEE_NEVER_HOT ID_EXPELLER_SHARE_CORE ID_IDLE_AVG
ID_LAST_HIGHCLASS_STAY ID_LOAD_BALANCE ID_LOOSE_EXPEL ID_PUSH_EXPELLEE ID_RESCUE_EXPELLEE
"""
NAMES = tuple((_MAINLINE + _ANOLIS).split())


def feature_parser(name: str) -> Callable[[bytes], int]:
    """Return what reads one feature from the list: 1 is on, 0 off."""

    def parse(data: bytes) -> int:
        words = data.decode().split()
        is_on, is_off = name in words, f"NO_{name}" in words
        if is_on == is_off:
            found = "both" if is_on else "neither of them"
            raise ValueError(f"wanted either {name} or NO_{name}, found {found}")
        return int(is_on)

    return parse


def feature_text(name: str) -> Text[int]:
    """The text that switches one feature: its name, or NO_ and its name."""
    parse = feature_parser(name)

    def of(value: int) -> str:
        if value not in (0, 1):
            raise ValueError(f"wanted 0 or 1, found {value!r:.60}")
        return name if value else f"NO_{name}"

    def value(text: str) -> int:
        if text not in (name, f"NO_{name}"):
            raise ValueError(f"wanted {name} or NO_{name}, found {text!r:.60}")
        return int(text == name)

    return Text(of, lambda data: of(parse(data)), value)
