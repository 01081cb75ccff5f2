"""koordletctl page: the status page with its switches, from the control socket to a browser.

A server on 127.0.0.1 hands the page's requests on. Every user of the machine can reach it, so the
address has a token that counts once: the page that it brings has a secret in it, which its scripts
send in a header with each request for data and switches. A cookie would go to all ports of
127.0.0.1, those of other users too. The page without the secret, as after a reload, and its scripts
hold no data and are for all. Pages of other sites are refused by Host, Origin and Sec-Fetch-Site.
"""

import hmac
import http.client
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from koord.util.errors import KoordError
from koord.util.text import printable
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient

HEAD_SECONDS = 10.0  # until a request is there
IDLE_TIMEOUT = 60.0  # seconds without a line of the daemon
MAX_PAGE = 1 << 20  # bytes of HTML

_OPEN = re.compile(r"/|/page/[A-Za-z0-9.-]{1,100}\.(js|css)")
_READ = re.compile(r"/page/[A-Za-z0-9./-]{1,100}(\?name=[A-Za-z0-9%._~*-]{0,1600})?")
_SWITCH = re.compile(r"/dry-run/[A-Za-z0-9%._-]{1,200}/(on|off)")
_FORWARDED = (
    "Content-Type",
    "Content-Security-Policy",
    "Cross-Origin-Opener-Policy",
    "Cross-Origin-Resource-Policy",
    "Referrer-Policy",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Retry-After",
)
_CHUNK_BYTES = 64 << 10  # bytes

Pieces = Callable[[http.client.HTTPResponse], Iterator[bytes]]
"""The body of a response as it is sent."""


def _is_streamed(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(_CHUNK_BYTES):
        yield piece


def run(client: CtlClient, options: CtlOptions) -> int:
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
        self.secret = secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as err:
            raise KoordError(f"port {port}: wanted to listen, found {err.strerror}") from err
        self.host = f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://{self.host}/?token={self.token}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where a client is gone, whatever was being read or written."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

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
        """Serve the page; with the token, the secret in it."""
        if not self._is_own():
            return self._refuse("wanted our own page, found another site's")
        path, _, query = self.path.partition("?")
        if path == "/" and query:
            token = parse_qs(query).get("token", [""])[0]
            if not self.server.use(token):
                why = "this address has been used, or was cut; start koordletctl anew"
                return self._refuse(why)
            return self._hand_on("GET", "/", self._with_secret)
        if _OPEN.fullmatch(self.path):
            return self._hand_on("GET", self.path, _is_streamed)
        if not _READ.fullmatch(self.path):
            return self._refuse("no such page", HTTPStatus.NOT_FOUND)
        return self._guarded("GET")

    def do_POST(self) -> None:
        """Switch dry-run."""
        if not self._is_own() or self.headers.get("Origin") != f"http://{self.server.host}":
            return self._refuse("wanted our own page, found another site's")
        if not _SWITCH.fullmatch(self.path):
            return self._refuse("no such switch", HTTPStatus.NOT_FOUND)
        return self._guarded("POST")

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the token stands in the first address."""

    def _is_own(self) -> bool:
        site = self.headers.get("Sec-Fetch-Site", "none")
        origin = self.headers.get("Origin", f"http://{self.server.host}")
        return (
            self.headers.get_all("Host") == [self.server.host]
            and origin == f"http://{self.server.host}"
            and site in ("same-origin", "none")
        )

    def _guarded(self, method: str) -> None:
        """Hand on what the page asks that has the secret."""
        given, wanted = self.headers.get("Authorization", ""), f"Bearer {self.server.secret}"
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            return self._refuse("open the address that koordletctl has printed")
        return self._hand_on(method, self.path, _is_streamed)

    def _hand_on(self, method: str, path: str, pieces: Pieces) -> None:
        connection = http.client.HTTPConnection("localhost", timeout=IDLE_TIMEOUT)
        try:
            connection.sock = self.server.client.connect()
            connection.sock.settimeout(IDLE_TIMEOUT)
            connection.request(method, path, headers={"Connection": "close"})
            self._copy(connection.getresponse(), pieces)
        except KoordError as err:
            self._refuse(printable(err), HTTPStatus.BAD_GATEWAY)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # one end is gone; the page asks again
        finally:
            connection.close()

    def _copy(self, response: http.client.HTTPResponse, pieces: Pieces) -> None:
        self.send_response(response.status)
        for name in _FORWARDED:
            if value := response.getheader(name):
                self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")  # the page may have the secret in it
        self.end_headers()
        for piece in pieces(response):
            self.wfile.write(piece)
            self.wfile.flush()

    def _with_secret(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        page = response.read(MAX_PAGE)
        yield page.replace(b"<html ", f'<html data-secret="{self.server.secret}" '.encode(), 1)

    def _refuse(self, why: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> None:
        body = f"{why}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)
