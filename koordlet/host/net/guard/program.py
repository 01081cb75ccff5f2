"""The helper's program: enters the node's network namespace, and serves TrafficControl there.

It ends with its agent, but not before every change is confirmed or rolled back.
"""

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import structlog

from koord.api.decoding.fields import Fields
from koord.util.clock import SystemClock
from koord.util.errors import KoordError
from koord.util.owneddir import OwnedDirectory
from koordlet.host.net.guard.confine import (
    drop_capabilities,
    enter_cgroup_namespace,
    enter_network,
    leave_groups,
)
from koordlet.host.net.guard.frames import Channel, ChannelError, MalformedLine, error_message
from koordlet.host.net.guard.guarded import GuardedTraffic, Reach
from koordlet.host.net.guard.reach import ApiServer, Gateway
from koordlet.host.net.guard.records import RecordFile
from koordlet.host.net.tc import TrafficControl
from koordlet.host.net.tc.kernel import KernelTraffic

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
AMID_LINE = 2.0  # seconds that an agent may take for the rest of a line
MOST_AFTER = 60.0  # seconds after the agent's end: a rollback that fails is left to the next start


def serve(channel: Channel, traffic: GuardedTraffic) -> None:
    """Answer until the agent ends, and then until nothing is on probation."""
    clock, ended = SystemClock(), 0.0
    while not ended or (traffic.pending and clock.monotonic() < ended + MOST_AFTER):
        readable, _, _ = select.select([] if ended else [channel], [], [], traffic.pause)
        if readable:
            try:
                channel.send(respond(channel, traffic))
            except ChannelError:
                ended = clock.monotonic()
                channel.close()
        traffic.check()


def respond(channel: Channel, traffic: TrafficControl) -> dict[str, Any]:
    """Return what to say to the next line. Raises ChannelError: there will be none."""
    try:
        request = channel.receive()
    except MalformedLine as err:
        return error_message(err)
    return answer(request, traffic)


def answer(request: dict[str, Any], traffic: TrafficControl) -> dict[str, Any]:
    """Do what a request asks for, and return what to say."""
    try:
        return {"ok": _do(Fields(request, "request"), traffic)}
    except (KoordError, OSError, ValueError) as err:
        return error_message(err)


def _do(request: Fields, traffic: TrafficControl) -> str | int | None:
    interface, operation = request.text("interface"), request.text("op")
    match operation:
        case "read":
            data = traffic.read(interface)
            return None if data is None else data.decode("ascii")
        case "identity":
            return traffic.identity(interface)
        case "end":
            return traffic.end_of(request.integer("pid") or 0)
        case "sockets":
            return traffic.knows_sockets()
        case "write":
            identity, content = request.integer("identity") or 0, request.text("content")
            traffic.write(interface, identity, content.encode())
            return None
    raise ValueError(f"wanted a request, found {operation:.60}")


def main() -> None:
    """Run with one argument, JSON; standard input is the channel."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    channel = Channel(socket.socket(fileno=os.dup(0)), AMID_LINE)
    config = json.loads(sys.argv[1])
    try:
        problems = enter_cgroup_namespace(Path(config["cgroup"])) if config["cgroup"] else []
        problems += leave_groups([Path(root) for root in config["cgroups"]])
        if problems:
            structlog.get_logger("koordlet.network").warning(
                "network.helper_in_the_agents_cgroup", problems=problems
            )
        if config["network"]:
            enter_network(Path(config["network"]))
        directory = OwnedDirectory.open(Path(config["state"]))
        boot = Path(_BOOT_ID).read_text().strip()
        record = RecordFile(directory, boot)
        drop_capabilities()
    except OSError as err:
        channel.send(error_message(err))
        return
    channel.send({"ok": None})
    reach: Reach = ApiServer(*config["api"]) if config["api"] else Gateway()
    serve(channel, GuardedTraffic(KernelTraffic(), reach, record, SystemClock()))


if __name__ == "__main__":
    main()
