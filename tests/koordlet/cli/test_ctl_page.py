"""koordletctl page: who is served through it, and what."""

import http.client
import json
import threading

import pytest

from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.page import PageServer


@pytest.fixture
def server(daemon):
    with PageServer(CtlClient([daemon.run_dir])) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """Sends a request as a browser would; headers of None are left out."""

    def ask(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        found = {"Host": server.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in found.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        text = response.fp.readline() if path == "/page/stream" else response.read()
        connection.close()
        return response, text.decode()

    return ask


@pytest.fixture
def cookie(server, ask):
    response, _ = ask(server.url.partition(server.host)[2])
    assert response.status == 303
    return response.getheader("Set-Cookie").partition(";")[0]


def test_the_token_counts_once(server, ask, cookie):
    """Who finds the address in a history or a list of processes has nothing."""
    again, text = ask(f"/?token={cookie.partition('=')[2]}")
    assert again.status == 403
    assert "has been used" in text
    assert server.token is None


def test_the_browser_with_the_cookie_is_served(ask, cookie):
    """The page as over the control socket: with switches."""
    response, text = ask("/", Cookie=cookie)
    assert response.status == 200
    assert "frame-ancestors 'none'" in response.getheader("Content-Security-Policy")
    assert 'data-switches="yes"' in text

    _, line = ask("/page/stream", Cookie=cookie)
    assert json.loads(line)["sections"]["health"]["status"] == "ok"


def test_it_switches_dry_run(ask, cookie, server):
    headers = {"Cookie": cookie, "Origin": f"http://{server.host}"}
    response, text = ask("/dry-run/CPUBurst/on", "POST", **headers)
    assert response.status == 200, text


@pytest.mark.parametrize("path", ["/", "/page/stream", "/page/page.js"])
def test_other_users_of_the_machine_get_nothing(ask, path):
    """They can reach the port, too."""
    response, text = ask(path)
    assert response.status == 403
    assert "open the address that koordletctl has printed" in text


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/", "GET", {"Host": "evil.example"}),
        ("/", "GET", {"Sec_Fetch_Site": "cross-site"}),
        ("/page/stream", "GET", {"Origin": "http://evil.example"}),
        ("/dry-run/all/on", "POST", {"Origin": "http://evil.example"}),
        ("/dry-run/all/on", "POST", {}),
    ],
)
def test_pages_of_other_sites_get_nothing_even_with_the_cookie(ask, cookie, path, method, headers):
    response, _ = ask(path, method, Cookie=cookie, **headers)
    assert response.status == 403


@pytest.mark.parametrize(
    ("path", "method"),
    [("/status", "GET"), ("/record?duration=1h", "GET"), ("/plugins/x/release", "POST")],
)
def test_nothing_but_the_page_is_handed_on(ask, cookie, server, path, method):
    origin = {"Origin": f"http://{server.host}"}
    response, _ = ask(path, method, Cookie=cookie, **origin)
    assert response.status == 404


def test_it_does_not_begin_without_a_daemon(ctl):
    code, out, err = ctl("page")
    assert (code, out) == (1, "")
    assert "wanted a running daemon" in err
