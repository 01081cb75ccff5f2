"""API server and credentials are found as kubectl and pods find them."""

import base64
import contextlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.errors import ConfigError
from koord.kube.kubeconfig import find_config, in_cluster, load

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def kubeconfig(name: str = "a", *, user: dict | None = None, cluster: dict | None = None) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}:6443"} | (cluster or {})}
        ],
        "users": [{"name": name, "user": user or {"token": f"token of {name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def write(path: Path, found: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found if isinstance(found, str) else yaml.safe_dump(found))
    return path


@pytest.fixture
def places(tmp_path: Path):
    """A home directory, a service account, and a file for --kubeconfig and KUBECONFIG each."""
    account = tmp_path / "account"
    for name, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "koordlet\n")):
        write(account / name, text)
    return {
        "flag": str(write(tmp_path / "flag", kubeconfig("flag"))),
        "variable": str(write(tmp_path / "variable", kubeconfig("variable"))),
        "home": write(tmp_path / "home" / ".kube" / "config", kubeconfig("home")).parent.parent,
        "account": account,
    }


@pytest.mark.parametrize(
    ("flag", "variable", "pod", "home", "server"),
    [
        (True, True, True, True, "https://flag:6443"),
        (False, True, True, True, "https://variable:6443"),
        (False, False, True, True, "https://10.96.0.1:443"),
        (False, False, False, True, "https://home:6443"),
        (False, False, False, False, None),
    ],
)
def test_the_order_of_places(places, tmp_path, flag, variable, pod, home, server) -> None:
    """What is said more expressly goes first."""
    environment = (IN_CLUSTER if pod else {}) | (
        {"KUBECONFIG": places["variable"]} if variable else {}
    )

    found = find_config(
        places["flag"] if flag else "",
        environment,
        home=places["home"] if home else tmp_path,
        service_account=places["account"],
    )

    assert (found and found.server) == server


def test_a_service_account(places) -> None:
    """Token and CA stay files: others replace them."""
    found = in_cluster(IN_CLUSTER, places["account"])

    assert found.token_file == places["account"] / "token"
    assert found.ca == places["account"] / "ca.crt"
    assert found.namespace == "koordlet"
    assert in_cluster(IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, places["account"]
                      ).server == "https://[fd00::1]:443"  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "lacking"),
    [({}, ""), ({"KUBERNETES_SERVICE_HOST": "x", "KUBERNETES_SERVICE_PORT": "tcp"}, ""),
     (IN_CLUSTER, "token"), (IN_CLUSTER, "ca.crt")],
)  # fmt: skip
def test_an_incomplete_service_account(places, environment, lacking) -> None:
    """The message says which part is missing and what to do."""
    if lacking:
        (places["account"] / lacking).unlink()

    with pytest.raises(ConfigError, match=lacking or "KUBERNETES_SERVICE_HOST"):
        in_cluster(environment, places["account"])


def test_lists_are_merged(tmp_path: Path) -> None:
    """The first file wins by name; a file that is missing does not matter."""
    first = kubeconfig("a")
    second = kubeconfig("a", user={"token": "other"}) | {"current-context": "b"}
    second["clusters"].append({"name": "b", "cluster": {"server": "https://b"}})
    second["contexts"].append({"name": "b", "context": {"cluster": "b", "user": "a"}})
    del first["current-context"]
    paths = [write(tmp_path / "1", first), tmp_path / "missing", write(tmp_path / "2", second)]

    found = load(paths)

    assert (found.server, found.token) == ("https://b", "token of a")


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    """Relative paths mean what they mean to kubectl."""
    user = {"client-certificate": "pki/c.pem", "client-key": "/abs/k.pem", "tokenFile": "t"}
    cluster = {"certificate-authority": "ca.pem"}

    found = load([write(tmp_path / "sub" / "config", kubeconfig(user=user, cluster=cluster))])

    directory = tmp_path / "sub"
    assert found.certificate == directory / "pki/c.pem"
    assert found.key == Path("/abs/k.pem")
    assert found.token_file == directory / "t"
    assert found.ca == directory / "ca.pem"


def test_data_goes_before_files(tmp_path: Path) -> None:
    """As in kubectl."""
    data = base64.b64encode(b"PEM").decode()
    user = {"client-certificate-data": data, "client-certificate": "x", "client-key-data": data}
    cluster = {
        "certificate-authority-data": data,
        "tls-server-name": "k",
        "proxy-url": "http://p:1",
    }

    found = load([write(tmp_path / "config", kubeconfig(user=user, cluster=cluster))])

    assert (found.certificate, found.key, found.ca) == (b"PEM", b"PEM", b"PEM")
    assert (found.tls_server_name, found.proxy_url) == ("k", "http://p:1")


def test_an_exec_plugin(tmp_path: Path) -> None:
    """All inputs of a plugin, and its command found beside the file."""
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "bin/login",
        "args": ["--a"],
        "env": [{"name": "X", "value": "v"}],
        "installHint": "hint",
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    cluster = {"certificate-authority-data": base64.b64encode(b"PEM").decode()}

    found = load(
        [write(tmp_path / "config", kubeconfig(user={"exec": plugin}, cluster=cluster))]
    ).exec_plugin

    assert found is not None
    assert found.command == str(tmp_path / "bin/login")
    assert (found.args, found.env, found.install_hint) == (("--a",), {"X": "v"}, "hint")
    assert found.cluster == {"server": "https://a:6443", **cluster}


def test_json_is_a_kubeconfig_too(tmp_path: Path) -> None:
    """Some tools write it so."""
    assert load([write(tmp_path / "c", json.dumps(kubeconfig()))]).token == "token of a"


def test_insecure_means_without_a_ca(tmp_path: Path) -> None:
    """The flag decides, whatever CA there is besides."""
    cluster = {"insecure-skip-tls-verify": True, "certificate-authority": "ca"}

    found = load([write(tmp_path / "config", kubeconfig(cluster=cluster))])

    assert (found.verify, found.ca) == (False, None)


def _with(**changes: object) -> dict:
    return kubeconfig() | changes


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("", "current-context"),
        ("{", "config"),
        ("- a", "an object"),
        (_with(**{"current-context": ""}), "kubectl config use-context"),
        (_with(**{"current-context": "zzz"}), "the context 'zzz'"),
        (_with(clusters=[]), "the cluster 'a'"),
        (_with(users=None), "the user 'a'"),
        (_with(clusters={}), r"clusters: wanted a list"),
        (_with(contexts=[{"name": "a", "context": {}}]), r"contexts\[0\].context.cluster"),
        (kubeconfig(cluster={"server": 1}), r"clusters\[0\].cluster.server: wanted a text"),
        (kubeconfig(cluster={"server": "10.0.0.1:6443"}), "starts with https"),
        (kubeconfig(cluster={"server": "https://[::1"}), "starts with https"),
        (kubeconfig(cluster={"server": "https://a:99999"}), "starts with https"),
        (kubeconfig(cluster={"proxy-url": "socks5://a"}), "proxy-url"),
        (kubeconfig(cluster={"insecure-skip-tls-verify": "yes"}), "true or false"),
        (kubeconfig(cluster={"certificate-authority-data": "%"}), "base64"),
        (kubeconfig(user={"client-certificate": "c"}), "only one of them"),
        (kubeconfig(user={"username": "u", "password": "p"}), r"users\[0\].user.username"),
        (kubeconfig(user={"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (kubeconfig(user={"token": "t", "as": "admin"}), r"users\[0\].user.as"),
        (kubeconfig(user={"exec": {"command": "c"}}), "apiVersion"),
        (kubeconfig(user={"exec": {"command": "c", "apiVersion": "v1"}}), "authentication.k8s.io"),
        (kubeconfig(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}), "command"),
        (kubeconfig(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1",
                                   "command": "c", "interactiveMode": "Always"}}), "asks no user"),
    ],
)  # fmt: skip
def test_a_malformed_kubeconfig_says_where(tmp_path: Path, found: object, message: str) -> None:
    """The path of the file, and of the field in it."""
    path = write(tmp_path / "config", found)

    with pytest.raises(ConfigError, match=message) as caught:
        load([path])

    assert str(path) in str(caught.value)


@pytest.mark.parametrize("flag", ["missing", "."])
def test_a_file_that_a_flag_names_must_be_there(tmp_path: Path, flag: str) -> None:
    """No other place is tried: it would be another cluster."""
    with pytest.raises(ConfigError, match="wanted a kubeconfig"):
        find_config(str(tmp_path / flag), IN_CLUSTER, home=tmp_path)


@pytest.fixture(scope="module")
def any_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


_texts = st.sampled_from(["a", "", "https://a", "clusters", "token"])
_keys = st.sampled_from(
    ["name", "cluster", "user", "context", "server", "exec", "token", "as", "env", "command",
     "client-key-data", "certificate-authority-data", "apiVersion", "args", "proxy-url"]
)  # fmt: skip
_values = st.recursive(
    st.one_of(_texts, st.none(), st.booleans(), st.integers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)


@given(found=st.dictionaries(st.sampled_from(list(kubeconfig())), _values))
def test_no_kubeconfig_crashes_us(any_directory: Path, found: dict) -> None:
    """It is used or refused, whatever it holds."""
    path = any_directory / "config"
    path.write_text(json.dumps(kubeconfig() | found))
    with contextlib.suppress(ConfigError):
        load([path])
