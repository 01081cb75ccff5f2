"""Whether this kernel can keep tasks that distrust each other off the same core."""

import ctypes
import os

_PR_SCHED_CORE, _GET, _THREAD = 62, 0, 0


def problem() -> str:
    """Return why core scheduling cannot be used; "" when it can.

    Asks for this thread's own cookie, which needs no privilege.

    Source: kernel docs, admin-guide/hw-vuln/core-scheduling; prctl(2).
    """
    cookie = ctypes.c_ulong()
    libc = ctypes.CDLL(None, use_errno=True)
    unsigned = ctypes.c_ulong
    failed = libc.prctl(
        _PR_SCHED_CORE, unsigned(_GET), unsigned(0), unsigned(_THREAD), ctypes.byref(cookie)
    )
    return f"the kernel answers {os.strerror(ctypes.get_errno())!r}" if failed else ""
