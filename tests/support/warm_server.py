"""Starts Python programs out of a process that has imported what they import: see warmpython."""

import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable

MOST = 1 << 20  # bytes of a request: arguments and environment


def main() -> None:
    """Import the modules of argv, then start a program for each request, until the tests end.

    A program gets descriptors of its own for the three standard streams, its environment, directory
    and arguments; it runs as `python -m MODULE` or `python FILE` would, in this interpreter.
    """
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    program = _serve(requests)
    if program is not None:  # this is the child
        requests.close()
        program()


def _serve(requests: socket.socket) -> Callable[[], object] | None:
    """Return the program in each child, None here at the end."""
    ended: dict[int, int] = {}  # process: where its exit status goes
    readable, wakeup = os.pipe()
    for descriptor in (readable, wakeup):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    waiting = select.poll()  # not select, which knows 1024 descriptors
    for source in (requests.fileno(), readable):
        waiting.register(source, select.POLLIN)
    while True:
        ready = {source for source, _ in waiting.poll()}
        if readable in ready:
            os.read(readable, 4096)
            _report(ended)
        if requests.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, MOST, 4)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (readable, wakeup, *ended.values()):
                os.close(descriptor)
            return _program(json.loads(data), descriptors)
        *streams, status = descriptors
        for descriptor in streams:
            os.close(descriptor)
        ended[pid] = status
        requests.send(str(pid).encode())
        _report(ended)  # it may have ended before it was noted


def _report(ended: dict[int, int]) -> None:
    """Write the exit status of each child that has ended where it is waited for."""
    for pid in tuple(ended):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            descriptor = ended.pop(pid)
            os.write(descriptor, struct.pack("i", os.waitstatus_to_exitcode(status)))
            os.close(descriptor)


def _program(request: dict[str, object], descriptors: list[int]) -> Callable[[], object]:
    """Become that process, but for its program, which is returned."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    first, *arguments = request["command"]
    if first == "-m":
        module, *arguments = arguments
        sys.argv, sys.path[0] = [module, *arguments], os.getcwd()
        return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.argv = [first, *arguments]
    sys.path[0] = os.path.dirname(first)
    return lambda: runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
