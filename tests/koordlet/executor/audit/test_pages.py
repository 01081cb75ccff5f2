"""Readers of the audit log are closed when no request follows."""

import asyncio
import os

from koordlet.executor.audit.files import AuditReader
from koordlet.executor.audit.log import IDLE_TIMEOUT, AuditPages


async def test_idle_readers_give_back_their_files(bench):
    """Looked for each minute, and at the end."""
    for number in range(3):
        bench.record(str(number))
    await bench.log.flush()
    before = len(os.listdir("/proc/self/fd"))
    pages = AuditPages(lambda: AuditReader(bench.directory), bench.clock, most=4)
    run = asyncio.create_task(pages.run(bench.stop))
    await pages.page("", 1)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    await bench.clock.advance(IDLE_TIMEOUT + 61)
    assert len(os.listdir("/proc/self/fd")) == before
    await pages.page("", 1)
    bench.stop.set()
    await run
    assert len(os.listdir("/proc/self/fd")) == before
