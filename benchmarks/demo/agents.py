"""Counters of network traffic as koordlet serves them, one address for each node."""

import time
from collections.abc import Mapping

from aiohttp import web

PORT = 29316
SPEED = 125e6  # bytes per second of each link, 1 Gbit/s
_TEXT = """\
koordlet_node_network_receive_bytes_total{{device="eth0"}} {receive:.0f}
koordlet_node_network_transmit_bytes_total{{device="eth0"}} {transmit:.0f}
koordlet_node_network_receive_bytes_per_second{{device="eth0"}} {rate}
koordlet_node_network_transmit_bytes_per_second{{device="eth0"}} {rate}
koordlet_node_network_speed_bytes{{device="eth0"}} {speed:.0f}
"""


def address_of(number: int) -> str:
    """The InternalIP of a node: all of these are this machine."""
    return f"127.0.1.{number + 1}"


class Agents:
    """Serves the metrics of all nodes, until closed."""

    def __init__(self, traffic: Mapping[str, float]) -> None:
        """traffic: bytes per second in each direction, by node, in the order of addresses."""
        self._traffic = traffic
        self._began = time.monotonic() - 60
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Listen; OSError: an address is taken."""
        for number, name in enumerate(self._traffic):
            app = web.Application()
            app.router.add_get("/metrics", self._handler(name))
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, address_of(number), PORT).start()

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _handler(self, name: str):  # type: ignore[no-untyped-def]
        async def metrics(_: web.Request) -> web.Response:
            rate = self._traffic[name]
            total = rate * (time.monotonic() - self._began)
            text = _TEXT.format(receive=total, transmit=total, rate=rate, speed=SPEED)
            return web.Response(text=text)

        return metrics
