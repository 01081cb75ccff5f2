"""The daemon's listening address, and the messages when it cannot listen."""

import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.http.sockets import Address, ListenError, listen_tcp, listen_unix
from koord.util.errors import OptionError
from koord.util.ownedfiles import OwnedDirectory

LOCAL = Address("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9316", Address("", 9316)),
        ("127.0.0.1:9316", Address("127.0.0.1", 9316)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9316", Address("::1", 9316)),
        ("[::]:65535", Address("::", 65535)),
    ],
)
def test_addresses_are_written_as_in_go(text, address):
    """And written back the same."""
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9316", "host", "host:", ":http", ":-1", ":65536", ":٣", "::1:9316", "[a]:1:2"]
)
def test_what_is_no_address_is_refused(text):
    """With the flag in the message."""
    with pytest.raises(OptionError, match=r"^addr: found"):
        Address.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_an_option_error(text):
    """Nothing else comes out of the parser."""
    try:
        address = Address.parse(text)
    except OptionError:
        return
    assert 0 <= address.port <= 65535


def test_a_port_in_use_names_port_and_holder():
    """The operator sees what to stop."""
    with listen_tcp(LOCAL) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} in use by .* \(pid {os.getpid()}\)"):
            listen_tcp(Address("127.0.0.1", port))


def test_an_address_of_another_machine_is_refused():
    """203.0.113.7 is reserved for documentation."""
    with pytest.raises(ListenError, match=r"^203\.0\.113\.7:0: wanted to listen here"):
        listen_tcp(Address("203.0.113.7", 0))


def test_a_host_that_is_no_name_is_refused():
    """Before anybody is asked for it: no part of a host name has 64 letters."""
    with pytest.raises(ListenError, match="wanted a host name"):
        listen_tcp(Address("x" * 64, 0))


def test_no_host_means_every_address():
    """IPv4 clients reach it; IPv6 ones too where there is IPv6."""
    with listen_tcp(Address("", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_the_unix_socket_is_its_owners_alone(tmp_path):
    """Whatever the umask says."""
    path, place = tmp_path / "ctl.sock", OwnedDirectory.open(tmp_path) / "ctl.sock"

    with listen_unix(place):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_stale_socket_is_replaced(tmp_path):
    """What a killed daemon left behind does not keep the next one from starting."""
    path, place = tmp_path / "ctl.sock", OwnedDirectory.open(tmp_path) / "ctl.sock"
    listen_unix(place).close()
    assert path.exists()

    with listen_unix(place), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_answers_is_left_alone(tmp_path):
    """A second daemon on the same run dir does not take it away from the first."""
    path, place = tmp_path / "ctl.sock", OwnedDirectory.open(tmp_path) / "ctl.sock"

    with listen_unix(place):
        with pytest.raises(ListenError, match="another daemon"):
            listen_unix(place)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_another_kind_of_file_is_not_removed(tmp_path):
    """Nor is it taken for a socket."""
    path, place = tmp_path / "ctl.sock", OwnedDirectory.open(tmp_path) / "ctl.sock"
    path.write_text("precious")

    with pytest.raises(ListenError, match="another kind of file"):
        listen_unix(place)

    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "message"),
    [("no-dir/ctl.sock", "No such file"), ("d" * 120, "at most 107 bytes")],
)
def test_a_path_that_cannot_be_made_says_why(tmp_path, name, message):
    """The hint is about the run dir, which is where the path comes from."""
    with pytest.raises(ListenError, match=rf"{message}.*--run-dir"):
        listen_unix(OwnedDirectory.open(tmp_path) / name)
