"""A kernel with core scheduling, as prctl shows it: each process is one thread."""

import errno
import os
import threading

from koordlet.host.cpu_scheduler import (
    CREATE,
    GET,
    SCOPE_THREAD,
    SCOPE_THREAD_GROUP,
    SHARE_FROM,
    SHARE_TO,
)

FIRST = 1_000_000  # cookie


class FakeCookies:
    """The cookies of processes that a test says exist, and of this process's own threads."""

    def __init__(self, *pids):
        self.cookies = dict.fromkeys(pids, 0)
        self.threads = {}  # of our own
        self.next = FIRST
        self.calls = []
        self.refuses = 0  # errno of whatever changes something
        self.broken = 0  # errno of everything

    def __call__(self, command, pid, scope=SCOPE_THREAD):
        own = threading.get_native_id()
        if self.broken:
            raise OSError(self.broken, os.strerror(self.broken))
        if pid and pid not in self.cookies:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if command == GET:
            assert scope == SCOPE_THREAD
            return self.cookies[pid] if pid else self.threads.get(own, 0)
        self.calls.append((command, pid, scope))
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        match command:
            case _ if command == CREATE:
                assert scope == SCOPE_THREAD_GROUP
                self.cookies[pid], self.next = self.next, self.next + 1
            case _ if command == SHARE_TO:
                assert scope == SCOPE_THREAD_GROUP
                self.cookies[pid] = self.threads.get(own, 0)
            case _ if command == SHARE_FROM:
                assert scope == SCOPE_THREAD
                self.threads[own] = self.cookies[pid]
        return 0

    @property
    def own(self):
        """The cookie of the calling thread."""
        return self.threads.get(threading.get_native_id(), 0)
