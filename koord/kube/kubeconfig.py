"""The API server to use: from a kubeconfig, or from the service account of a pod."""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from koord.api.fields import Fields
from koord.kube.credentials import ApiConfig, ExecPlugin, Material
from koord.kube.errors import ConfigError
from koord.util import documents
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, read_bounded

MAX_BYTES = 4 << 20
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

# To ignore one of these would be to act under another identity than the file says.
_UNSUPPORTED_USER = ("username", "password", "auth-provider", "as", "as-uid", "as-groups")


def split_list(paths: str) -> list[Path]:
    """The paths of a list as KUBECONFIG has it."""
    return [Path(path) for path in paths.split(":") if path]


def load(paths: Sequence[Path], *, must_exist: bool = False) -> ApiConfig:
    """Return the server and user of the current context.

    As in kubectl, the first file that has a current context, or a cluster, user or context of some
    name, wins; relative paths start at the directory of the file that has them.

    Raises:
        ConfigError: a file is malformed, or the context is not complete.
    """
    source = ":".join(map(str, paths))
    try:
        files = [_File(path) for path in paths if must_exist or path.exists()]
        return _Merged(files, source).config()
    except InvalidObject as err:
        raise ConfigError(source, wanted="a kubeconfig", found=f"this: {err}") from err


class _Entry:
    """A named cluster, user or context, and the directory that its paths start at."""

    def __init__(self, fields: Fields, directory: Path) -> None:
        self.fields = fields
        self._directory = directory

    def path(self, key: str) -> Path | None:
        text = self.fields.text(key)
        return self._directory / text if text else None

    def material(self, key: str) -> Material | None:
        """The PEM text in key-data, else the file that key names."""
        data = self.fields.text(f"{key}-data")
        if not data:
            return self.path(key)
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as err:
            where = self.fields.path(f"{key}-data")
            raise InvalidObject(
                where, wanted="base64", found=f"{len(data)} letters: {err}"
            ) from err

    def command(self, text: str) -> str:
        """Return a program: looked up in PATH, or in the file's directory when it has a slash."""
        return str(self._directory / text) if "/" in text else text


class _File:
    def __init__(self, path: Path) -> None:
        try:
            data = read_bounded(path, MAX_BYTES)
        except FileReadError as err:
            raise ConfigError(path, wanted="a kubeconfig", found=str(err)) from err
        found = (
            documents.decode(data, str(path)) if data.strip() else {}
        )  # empty ones may be listed
        self._fields = Fields(found, str(path))
        self._directory = path.parent.absolute()
        self.current_context = self._fields.text("current-context")

    def entries(self, plural: str, kind: str) -> Iterable[tuple[str, _Entry]]:
        for item in self._fields.objects(plural):
            yield item.required_text("name"), _Entry(item.nested(kind), self._directory)


class _Merged:
    def __init__(self, files: Sequence[_File], source: str) -> None:
        self._files = files
        self._source = source

    def config(self) -> ApiConfig:
        context = self._find("contexts", "context", self._current()).fields
        cluster = self._find("clusters", "cluster", context.required_text("cluster"))
        user = self._user(context.text("user"))
        verify = not cluster.fields.boolean("insecure-skip-tls-verify")
        return ApiConfig(
            server=self._server(cluster.fields),
            source=self._source,
            ca=cluster.material("certificate-authority") if verify else None,
            verify=verify,
            tls_server_name=cluster.fields.text("tls-server-name"),
            proxy_url=self._proxy(cluster.fields),
            token=user.fields.text("token"),
            token_file=user.path("tokenFile"),
            certificate=user.material("client-certificate"),
            key=user.material("client-key"),
            exec_plugin=self._exec(user, cluster),
            namespace=context.text("namespace"),
        )

    def _current(self) -> str:
        names = (file.current_context for file in self._files)
        name = next(filter(None, names), "")
        if not name:
            self._fail("current-context", "nothing", "choose one: kubectl config use-context NAME")
        return name

    def _find(self, plural: str, kind: str, name: str) -> _Entry:
        entries = (pair for file in self._files for pair in file.entries(plural, kind))
        entry = next((entry for found, entry in entries if found == name), None)
        if entry is None:
            self._fail(f"the {kind} {name!r}", f"no such entry in {plural}")
        return entry

    def _user(self, name: str) -> _Entry:
        if not name:
            return _Entry(Fields({}, "user"), Path())
        user = self._find("users", "user", name)
        for key in _UNSUPPORTED_USER:
            if user.fields.raw.get(key):
                self._fail("a token, client certificate or exec plugin", user.fields.path(key))
        if (user.material("client-certificate") is None) != (user.material("client-key") is None):
            self._fail("client-certificate and client-key", "only one of them")
        return user

    def _server(self, cluster: Fields) -> str:
        server = cluster.required_text("server").rstrip("/")
        self._check_url(cluster.path("server"), server, ("https", "http"))
        return server

    def _proxy(self, cluster: Fields) -> str:
        proxy = cluster.text("proxy-url")
        if proxy:
            self._check_url(cluster.path("proxy-url"), proxy, ("http", "https"))
        return proxy

    def _check_url(self, where: str, url: str, schemes: Sequence[str]) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            self._fail(f"{where}: a URL that starts with {' or '.join(schemes)}", repr(url))

    def _exec(self, user: _Entry, cluster: _Entry) -> ExecPlugin | None:
        if user.fields.raw.get("exec") is None:
            return None
        plugin = user.fields.nested("exec")
        version = plugin.required_text("apiVersion")
        if version not in EXEC_VERSIONS:
            self._fail(f"{plugin.path('apiVersion')}: {' or '.join(EXEC_VERSIONS)}", version)
        if plugin.text("interactiveMode") == "Always":
            self._fail("an exec plugin that asks no user", "interactiveMode: Always")
        return ExecPlugin(
            api_version=version,
            command=user.command(plugin.required_text("command")),
            args=tuple(plugin.list_of("args", _text, "a text")),
            env={item.required_text("name"): item.text("value") for item in plugin.objects("env")},
            install_hint=plugin.text("installHint"),
            cluster=_cluster_info(cluster) if plugin.boolean("provideClusterInfo") else None,
        )

    def _fail(self, wanted: str, found: str, hint: str = "") -> NoReturn:
        raise ConfigError(self._source, wanted=wanted, found=found, hint=hint)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)


def _cluster_info(cluster: _Entry) -> dict[str, object]:
    """The cluster as an exec plugin gets it in KUBERNETES_EXEC_INFO."""
    keep: tuple[tuple[str, Callable[[], object]], ...] = (
        ("server", lambda: cluster.fields.text("server")),
        ("tls-server-name", lambda: cluster.fields.text("tls-server-name")),
        ("insecure-skip-tls-verify", lambda: cluster.fields.boolean("insecure-skip-tls-verify")),
        ("certificate-authority-data", lambda: _base64(cluster.material("certificate-authority"))),
        ("proxy-url", lambda: cluster.fields.text("proxy-url")),
    )
    return {key: value for key, read in keep if (value := read())}


def _base64(material: Material | None) -> str:
    data = read_bounded(material, MAX_BYTES) if isinstance(material, Path) else material or b""
    return base64.b64encode(data).decode()


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_config(
    kubeconfig: str,
    environment: Mapping[str, str],
    *,
    home: Path,
    service_account: Path = SERVICE_ACCOUNT,
) -> ApiConfig | None:
    """Return the API server to use, or None when none is configured anywhere.

    The first of these that there is: the file (or list of files) named by a flag, those of
    KUBECONFIG, the service account of the pod we run in, .kube/config in the home directory.

    Raises:
        ConfigError: the first that there is cannot be used. No other is tried then: it would be
            another cluster or another user.
    """

    if kubeconfig:
        return load(split_list(kubeconfig), must_exist=True)
    listed = [path for path in split_list(environment.get("KUBECONFIG", "")) if path.exists()]
    if listed:
        return load(listed)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment, service_account)
    default = home / ".kube" / "config"
    return load([default]) if default.exists() else None


def in_cluster(
    environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> ApiConfig:
    """Return the API server that a pod finds in its environment and service account.

    Raises:
        ConfigError: a part of that is missing.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port.isdecimal():
        raise ConfigError(
            "in-cluster configuration",
            wanted="KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
            found=f"{host!r} and {port!r}",
            hint="run as a pod, or name a kubeconfig with --kubeconfig",
        )
    for name in ("token", "ca.crt"):
        if not (service_account / name).exists():
            raise ConfigError(
                service_account / name,
                wanted="the service account's files",
                found="no such file",
                hint="set automountServiceAccountToken: true",
            )
    return ApiConfig(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        source="the pod's service account",
        ca=service_account / "ca.crt",
        token_file=service_account / "token",
        namespace=_namespace(service_account / "namespace"),
    )


def _namespace(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # only a default for others; requests do not need it
