"""Messages when a daemon cannot be queried: the reason and the remedy."""

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from koordlet.cli.ctl.client import (
    BadRequest,
    BadResponse,
    CtlClient,
    NoDaemon,
    NotPermitted,
    UntrustedSocket,
    default_run_dirs,
)

NOBODY = 65534


@contextlib.contextmanager
def listener(run_dir, answer=b""):
    """Something on the socket that takes one connection, says that much and hangs up."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run_dir / "ctl.sock"))
        server.listen()

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_without_a_socket_all_places_are_named(tmp_path):
    """The reader sees where to look, and that --run-dir may say another place."""
    client = CtlClient([tmp_path / "a", tmp_path / "b"])

    with pytest.raises(NoDaemon, match=r"no ctl\.sock in .*/a or .*/b; start koordlet, or give"):
        client.get("status")


def test_a_stale_socket_means_a_killed_daemon(tmp_path):
    """kill -9 leaves the socket behind."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "ctl.sock"))

    with pytest.raises(NoDaemon, match="killed; start koordlet"):
        CtlClient([tmp_path / "missing", tmp_path]).get("status")


def test_another_users_daemon_needs_sudo(tmp_path):
    """The socket is 0600; a refused permission is a better reason than a place without a socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "ctl.sock"))
        server.listen()
        (tmp_path / "ctl.sock").chmod(0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(NOBODY)
        try:
            with pytest.raises(NotPermitted, match=r"no permission; it is for .* only: use sudo"):
                CtlClient([tmp_path / "missing", tmp_path]).get("status")
        finally:
            os.seteuid(before)


def test_a_place_that_cannot_be_is_said(tmp_path):
    """Longer than a socket's path may be, for one."""
    with pytest.raises(NoDaemon, match="too long"):
        CtlClient([tmp_path / ("x" * 200)]).get("status")


def test_the_first_daemon_that_answers_is_asked(tmp_path):
    """So neither the host's nor the DaemonSet's has to be named."""
    body = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"pid": 123}'
    with listener(tmp_path, body):
        assert CtlClient([tmp_path / "missing", tmp_path]).get("status") == {"pid": 123}


def test_a_daemon_that_hangs_is_given_up(tmp_path):
    """Connecting works even then: the kernel does that."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "ctl.sock"))
        server.listen()
        with pytest.raises(BadResponse, match=r"none within 0\.05 s"):
            CtlClient([tmp_path], timeout=0.05).get("status")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"", BadResponse, "connection closed"),
        (b"SSH-2.0\r\n\r\n", BadResponse, "connection closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", BadResponse, "wanted JSON"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 8\r\n\r\nnot yet\n", BadResponse, "^not yet$"),
        (b"HTTP/1.1 400 No\r\nContent-Length: 4\r\n\r\nwhy?", BadRequest, r"^why\?$"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nwhat", BadRequest, "another version"),
    ],
)
def test_every_other_answer_is_an_error_for_people(tmp_path, answer, error, message):
    """Nothing, something else, or what the daemon itself says is wrong."""
    with listener(tmp_path, answer), pytest.raises(error, match=message):
        CtlClient([tmp_path]).get("status")


def test_where_daemons_are_looked_for(tmp_path):
    """The user's own comes first; root's own is the host's."""
    container = Path("/host-var-run-koordlet")

    assert default_run_dirs(0, {}) == [Path("/run/koordlet"), container]
    assert default_run_dirs(1000, {"XDG_RUNTIME_DIR": str(tmp_path)}) == [
        tmp_path / "koordlet",
        Path("/run/koordlet"),
        container,
    ]


@contextlib.contextmanager
def served_by(uid, run_dir):
    """A socket on which a user listens; no response comes."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run_dir / "ctl.sock"))
        os.seteuid(uid)  # whose the other end is counts from listen on
        try:
            server.listen()
        finally:
            os.seteuid(0)
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to listen as another user")
def test_another_users_process_is_not_asked(tmp_path):
    """A socket in a place that is not ours proves nothing."""
    with (
        served_by(NOBODY, tmp_path),
        pytest.raises(UntrustedSocket, match=rf"process {os.getpid()} of user {NOBODY}; ask as"),
    ):
        CtlClient([tmp_path]).get("status")


@pytest.mark.parametrize("kind", ["answer", "line"])
def test_an_answer_without_end_is_given_up(tmp_path, monkeypatch, kind):
    """It neither fills the memory of this command nor its terminal."""
    monkeypatch.setattr("koordlet.cli.ctl.client.MAX_BYTES", 1000)
    body = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 1500
    client = CtlClient([tmp_path])
    ask = {
        "answer": lambda: client.get("status"),
        "line": lambda: list(client.stream("record", query={}, silence=5)),
    }
    with listener(tmp_path, body), pytest.raises(BadResponse, match=r"at most 0 MiB .* found more"):
        ask[kind]()
