"""koordletctl page: who is served through it, and what."""

import http.client
import json
import socket
import struct
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
def first(server, ask):
    """The page that the printed address brings."""
    return ask(server.url.partition(server.host)[2])


@pytest.fixture
def secret(server, first):
    """The headers of a script of that page."""
    return {"Authorization": f"Bearer {server.secret}", "Sec_Fetch_Site": "same-origin"}


def test_the_address_counts_once_and_brings_the_secret_in_the_page(server, first, ask):
    """Who finds the address in a history or a list of processes has nothing."""
    response, text = first
    assert response.status == 200
    assert f'<html data-secret="{server.secret}" lang="en"' in text
    assert response.getheader("Cache-Control") == "no-store"
    assert server.token is None

    for path in (server.url.partition(server.host)[2], f"/?token={server.secret}", "/?token="):
        again, text = ask(path)
        assert again.status == 403
        assert "has been used" in text


def test_a_page_that_is_loaded_again_has_no_secret_and_no_data(server, first, ask):
    """The tab has kept it; who else asks for the page gets a frame that says nothing."""
    response, text = ask("/")
    assert response.status == 200
    assert "frame-ancestors 'none'" in response.getheader("Content-Security-Policy")
    assert 'data-switches="yes"' in text
    assert server.secret not in text
    assert ask("/page/page.js")[0].status == 200


def test_the_scripts_with_the_secret_are_served(ask, secret):
    _, line = ask("/page/stream", **secret)
    assert json.loads(line)["sections"]["health"]["status"] == "ok"


def test_no_answer_has_a_cookie(server, ask, first, secret):
    """A browser sends those of 127.0.0.1 to the servers of other users, too, on all ports."""
    for response in (first[0], ask("/")[0], ask("/page/stream", **secret)[0]):
        assert response.getheader("Set-Cookie") is None


def test_it_switches_dry_run(ask, secret, server):
    headers = {**secret, "Origin": f"http://{server.host}"}
    response, text = ask("/dry-run/CPUBurst/on", "POST", **headers)
    assert response.status == 200, text


@pytest.mark.parametrize(
    "given", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer ä"}, {"Cookie": "a=b"}]
)
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/page/stream", "GET"),
        ("/page/detail/pod?name=x", "GET"),
        ("/page/detail/x.js", "GET"),
        ("/dry-run/CPUBurst/on", "POST"),
    ],
)
def test_other_users_of_the_machine_get_nothing(ask, server, first, path, method, given):
    """They can reach the port, too."""
    response, text = ask(path, method, Origin=f"http://{server.host}", **given)
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
def test_pages_of_other_sites_get_nothing_even_with_the_secret(ask, secret, path, method, headers):
    response, _ = ask(path, method, **{**secret, **headers})
    assert response.status == 403


@pytest.mark.parametrize(
    ("path", "method"),
    [("/status", "GET"), ("/record?duration=1h", "GET"), ("/plugins/x/release", "POST")],
)
def test_nothing_but_the_page_is_handed_on(ask, secret, server, path, method):
    response, _ = ask(path, method, Origin=f"http://{server.host}", **secret)
    assert response.status == 404


@pytest.mark.parametrize("sends", [b"", b"GET", b"GET /page/stream HTTP/1.1\r\nHost: x", None])
def test_a_client_that_drops_leaves_no_traceback(server, secret, sends, capfd, monkeypatch):
    """Whether it was asking or being answered: it resets the connection."""
    finished, serve = threading.Semaphore(0), server.process_request_thread

    def served(*arguments):
        serve(*arguments)
        finished.release()

    monkeypatch.setattr(server, "process_request_thread", served)
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        if sends is None:
            bearer = f"Authorization: {secret['Authorization']}"
            head = f"GET /page/stream HTTP/1.1\r\nHost: {server.host}\r\n{bearer}\r\n\r\n"
            client.sendall(head.encode())
            client.recv(1)
        else:
            client.sendall(sends)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert finished.acquire(timeout=60)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "path", ["http://[x", "*", "/?token=%ff", "/?" + "a&" * 2000, "/page/../x", "/page/%2e%2e/a.js"]
)
def test_a_path_that_is_none_is_refused(ask, path):
    assert ask(path)[0].status in (403, 404)


def test_it_does_not_begin_without_a_daemon(ctl):
    code, out, err = ctl("page")
    assert (code, out) == (1, "")
    assert "wanted a running daemon" in err
