"""koordletctl page: the status page with its switches, from the control socket to a browser.

A server on 127.0.0.1 hands the page's requests on. Every user of the machine can reach it, so the
address has a token that counts once: the browser that brings it gets a cookie, and only that one is
served from then on. Pages of other sites are refused by Host, Origin and Sec-Fetch-Site.
"""

import hmac
import http.client
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from koord.util.errors import KoordError
from koord.util.printable import printable
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient

HEAD_SECONDS = 10.0  # until a request is there
SILENCE = 60.0  # seconds without a line of the daemon
COOKIE = "koordletctl"

_READ = re.compile(r"/|/page/[A-Za-z0-9./-]{1,100}(\?name=[A-Za-z0-9%._~*-]{0,1600})?")
_SWITCH = re.compile(r"/dry-run/[A-Za-z0-9%._-]{1,200}/(on|off)")
_HANDED_ON = (
    "Content-Type",
    "Content-Security-Policy",
    "Cross-Origin-Opener-Policy",
    "Cross-Origin-Resource-Policy",
    "Referrer-Policy",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Cache-Control",
    "Retry-After",
)
_AT_ONCE = 64 << 10  # bytes


def run(client: CtlClient, options: Options) -> int:
    """Print the address, and serve until ^C."""
    client.get("status")  # an error in one line is better than a page that says it
    with PageServer(client, options.port) as server:
        print(server.url, flush=True)
        print("open it within this user's browser; it counts once; ^C ends the page", flush=True)
        server.serve_forever()
    return 0


class PageServer(ThreadingHTTPServer):
    """Hands requests of one browser on to the daemon."""

    daemon_threads = True

    def __init__(self, client: CtlClient, port: int = 0) -> None:
        """port 0: any that is free.

        Raises:
            KoordError: the port is in use.
        """
        self.client = client
        self.token: str | None = secrets.token_urlsafe(24)  # None: it was used
        self.session = secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as err:
            raise KoordError(f"port {port}: wanted to listen, found {err.strerror}") from err
        self.host = f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://{self.host}/?token={self.token}"

    def use(self, token: str) -> bool:
        """Whether it is the token, which is used up then."""
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = None
        return True


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = HEAD_SECONDS
    protocol_version = "HTTP/1.0"  # a connection for each request: bodies end with it
    server_version, sys_version = "koordletctl", ""

    def do_GET(self) -> None:
        """Serve the page; with the token, the cookie for it."""
        if not self._is_own():
            return self._refuse("wanted our own page, found another site's")
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("token", [])
        if parts.path == "/" and given:
            return self._admit(given[0])
        if not _READ.fullmatch(self.path):
            return self._refuse("no such page", HTTPStatus.NOT_FOUND)
        return self._hand_on("GET")

    def do_POST(self) -> None:
        """Switch dry-run."""
        if not self._is_own() or self.headers.get("Origin") != f"http://{self.server.host}":
            return self._refuse("wanted our own page, found another site's")
        if not _SWITCH.fullmatch(self.path):
            return self._refuse("no such switch", HTTPStatus.NOT_FOUND)
        return self._hand_on("POST")

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a page asks each second, and the token stands in its first address."""

    def _is_own(self) -> bool:
        site = self.headers.get("Sec-Fetch-Site", "none")
        origin = self.headers.get("Origin", f"http://{self.server.host}")
        return (
            self.headers.get_all("Host") == [self.server.host]
            and origin == f"http://{self.server.host}"
            and site in ("same-origin", "none")
        )

    def _admit(self, token: str) -> None:
        if not self.server.use(token):
            return self._refuse("this address has been used, or was cut; start koordletctl anew")
        self.send_response(HTTPStatus.SEE_OTHER)
        attributes = "HttpOnly; SameSite=Strict; Path=/"
        self.send_header("Set-Cookie", f"{COOKIE}={self.server.session}; {attributes}")
        self.send_header("Location", "/")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        return None

    def _hand_on(self, method: str) -> None:
        cookies = (self.headers.get("Cookie") or "").split("; ")
        wanted = f"{COOKIE}={self.server.session}".encode()
        if not any(hmac.compare_digest(each.encode(), wanted) for each in cookies):
            return self._refuse("open the address that koordletctl has printed")
        connection = http.client.HTTPConnection("localhost", timeout=SILENCE)
        try:
            connection.sock = self.server.client.connect()
            connection.sock.settimeout(SILENCE)
            connection.request(method, self.path, headers={"Connection": "close"})
            self._copy(connection.getresponse())
        except KoordError as err:
            self._refuse(printable(err), HTTPStatus.BAD_GATEWAY)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # one end is gone; the page asks again
        finally:
            connection.close()

    def _copy(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name in _HANDED_ON:
            if value := answer.getheader(name):
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(_AT_ONCE):
            self.wfile.write(piece)
            self.wfile.flush()

    def _refuse(self, why: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> None:
        body = f"{why}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)
