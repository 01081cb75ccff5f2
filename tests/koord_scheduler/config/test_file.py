"""A configuration from a file: Koordinator's is taken as it is, a bad one is refused whole."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.field_errors import FieldError, InvalidConfig, invalid
from koord.component.plugins.args import ArgsType
from koord.controlplane.sections import ClientConnection
from koord.util.errors import KoordError
from koord_scheduler.config.configuration import (
    Configuration,
    ReadConfig,
    default_configuration,
    parse_configuration,
    to_document,
    without_secrets,
)
from koord_scheduler.config.profiles import DEFAULT_POINTS, KnownPlugin, Point
from koord_scheduler.config.v1 import Extender, LeaderElection
from tests.support.scheduler.shipped import SHIPPED

PATH = Path("/c.yaml")
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class TankArgs:
    """Arguments of a test's plugin."""

    litres: int = 40

    def validate(self) -> Iterator[FieldError]:
        if self.litres < 0:
            yield invalid(("litres",), self.litres, "wanted 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitArgs:
    """As NodeResourcesFit's."""

    ignored_resources: tuple[str, ...] = ()


_BOTH = frozenset({Point.FILTER, Point.SCORE, Point.RESERVE})
# Not those of SHIPPED that this repository has: a profile starts without what is not built.
KNOWN = {
    **{name: KnownPlugin(points) for name, points in DEFAULT_POINTS.items()},
    "LoadAwareScheduling": KnownPlugin(_BOTH),
    "SchedulingHint": KnownPlugin(frozenset({Point.PRE_FILTER})),
    "DefaultPreBind": KnownPlugin(frozenset({Point.PRE_BIND})),
    "Tank": KnownPlugin(_BOTH, ArgsType(TankArgs)),
    "Opaque": KnownPlugin(frozenset(Point), is_opaque=True),
}


def read(text: str) -> ReadConfig:
    """The text of a configuration behind its head."""
    return parse_configuration((HEAD + text).encode(), PATH, KNOWN)


def config(text: str) -> Configuration:
    return read(text).configuration


def faults(text: str) -> list[str]:
    """The faults of a text that is refused."""
    with pytest.raises(InvalidConfig) as caught:
        read(text)
    return [str(fault) for fault in caught.value.faults]


def names(read: ReadConfig, point: Point) -> list[str]:
    return [one.name for one in read.configuration.profiles[0].enabled(point)]


def test_the_shipped_configuration_starts_and_names_what_is_not_built() -> None:
    """Each missing plugin is one warning with its line and its points."""
    found = parse_configuration(SHIPPED.encode(), PATH, KNOWN)

    profile = found.configuration.profiles[0]
    assert profile.scheduler_name == "koord-scheduler"
    assert found.configuration.leader_election == LeaderElection()
    assert names(found, Point.QUEUE_SORT) == ["PrioritySort"]
    assert names(found, Point.FILTER)[-1] == "LoadAwareScheduling"
    assert names(found, Point.POST_FILTER) == ["DefaultPreemption"]
    assert names(found, Point.PRE_BIND) == ["VolumeBinding", "DynamicResources", "DefaultPreBind"]
    assert names(found, Point.BIND) == ["DefaultBinder"]
    assert profile.args.keys() == {"NodeResourcesFit", "LoadAwareScheduling"}
    missing = ("Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota")
    assert found.configuration.not_built == missing
    shown = {str(fault).split('"')[1]: fault for fault in found.warnings}
    assert shown.keys() == set(missing)
    assert (
        shown["ElasticQuota"].line
        == SHIPPED[: SHIPPED.index("- name: ElasticQuota\n      f")].count("\n") + 1
    )
    assert str(shown["DeviceShare"]) == (
        'profiles[0].plugins.preFilter.enabled[3].name: plugin "DeviceShare" is not built: the '
        "profile runs without it at preFilter, filter, score, reserve, preBind"
    )


def test_a_queue_sort_that_is_not_built_has_a_stand_in() -> None:
    """Koordinator's older configurations sort by Coscheduling."""
    found = read(
        "profiles: [{plugins: {queueSort: "
        "{disabled: [{name: '*'}], enabled: [{name: Coscheduling}]}}}]"
    )

    assert names(found, Point.QUEUE_SORT) == ["PrioritySort"]
    assert str(found.warnings[-1]) == (
        'profiles[0].plugins.queueSort: "PrioritySort" sorts the queue, as plugin "Coscheduling" '
        "is not built"
    )


def test_json_is_as_good_as_yaml() -> None:
    text = json.dumps(
        {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    )

    assert parse_configuration(text.encode(), PATH, KNOWN).configuration == config("")


def test_the_defaults() -> None:
    found = config("")

    assert found == default_configuration(KNOWN).configuration
    assert found.leader_election == LeaderElection(
        leader_elect=True,
        lease_duration=15.0,
        renew_deadline=10.0,
        retry_period=2.0,
        resource_lock="leases",
        resource_name="koord-scheduler",
        resource_namespace="koordinator-system",
    )
    assert found.client_connection == ClientConnection().complete()
    assert (found.pod_initial_backoff, found.pod_max_backoff) == (1, 10)
    assert found.percentage_of_nodes_to_score is None
    assert [one.scheduler_name for one in found.profiles] == ["default-scheduler"]
    assert found.profiles[0].percentage_of_nodes_to_score is None
    assert found.extenders == ()
    assert not read("").warnings


def test_flags_are_for_a_start_without_a_file() -> None:
    found = default_configuration(KNOWN, {"leader_elect": False}, {"kubeconfig": "/k", "qps": 7.0})

    assert not found.configuration.leader_election.leader_elect
    client = found.configuration.client_connection
    assert (client.kubeconfig, client.qps, client.burst) == ("/k", 7.0, 100)


def test_a_kubeconfig_of_the_flags_is_for_a_file_that_names_none() -> None:
    named = (HEAD + "clientConnection: {kubeconfig: /file}").encode()
    kubeconfigs = [
        parse_configuration(data, PATH, KNOWN, {}, "/flag").configuration.client_connection
        for data in (HEAD.encode(), named)
    ]

    assert [one.kubeconfig for one in kubeconfigs] == ["/flag", "/file"]


@pytest.mark.parametrize(
    ("version", "hints"),
    [
        ("v1beta1", ["scoringStrategy of NodeResourcesFitArgs", "TaintToleration now weighs 3"]),
        ("v1beta2", ["flags --address and --port", "TaintToleration now weighs 3"]),
        ("v1beta3", ["SelectorSpread"]),
    ],
)
def test_an_old_version_is_named_with_what_to_do(version: str, hints: list[str]) -> None:
    text = SHIPPED.replace("k8s.io/v1\nkind: Kube", f"k8s.io/{version}\nkind: Kube")
    with pytest.raises(InvalidConfig) as caught:
        parse_configuration(text.encode(), PATH, KNOWN)
    (fault,) = caught.value.faults

    assert fault.line == 1
    assert str(fault).startswith(
        f'apiVersion: Invalid value: "kubescheduler.config.k8s.io/{version}": '
        f"kubescheduler.config.k8s.io/v1; {version} is gone since Kubernetes 1.29 or earlier: "
        "write kubescheduler.config.k8s.io/v1 here and in the args of plugins"
    )
    assert all(hint in str(fault) for hint in hints)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "Parallelism: 3",
            ['Parallelism: unknown field "Parallelism"; did you mean "parallelism"?'],
        ),
        ("parallelism: 0", ["parallelism: Invalid value: 0: wanted more than 0"]),
        (
            "percentageOfNodesToScore: 101",
            ["percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"],
        ),
        (
            "podInitialBackoffSeconds: 0",
            ["podInitialBackoffSeconds: Invalid value: 0: wanted more than 0"],
        ),
        (
            "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4",
            [
                "podMaxBackoffSeconds: Invalid value: 4: wanted podInitialBackoffSeconds or more, "
                "or 0 for no backoff"
            ],
        ),
        ("clientConnection: {burst: -1}", ["clientConnection.burst: Invalid value: -1: must be"]),
        (
            "leaderElection: {retryPeriod: -1s}",
            ['leaderElection.retryPeriod: Invalid value: "-1s": must be greater than zero'],
        ),
        ("leaderElection: {leaderElect: maybe}", ["leaderElection.leaderElect: Invalid value"]),
        (
            "profiles: [{plugins: {multiPoint: {enabled: [{name: Opaque}]}}}]",
            [
                'profiles[0].plugins.multiPoint.enabled[0].name: Invalid value: "Opaque": plugin '
                '"Opaque": its extension points are not known before it is made'
            ],
        ),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: Nonsense}]}}}]",
            ['profiles[0].plugins.filter.enabled[0].name: Invalid value: "Nonsense"'],
        ),
        (
            "profiles: [{pluginConfig: [{name: Tank, args: {litres: -1}}]}]",
            ["profiles[0].pluginConfig[0].args.litres: Invalid value: -1: wanted 0 or more"],
        ),
        (
            "profiles: [{pluginConfig: [{name: Tank, args: {liters: 1}}]}]",
            [
                'profiles[0].pluginConfig[0].args.liters: unknown field "liters"; did you mean '
                '"litres"?'
            ],
        ),
        (
            "profiles: [{pluginConfig: [{name: Tank, args: {kind: TankerArgs}}]}]",
            ['profiles[0].pluginConfig[0].args.kind: Invalid value: "TankerArgs": wanted "Tank'],
        ),
        (
            "profiles: [{pluginConfig: [{name: ElasticQuota, args: {apiVersion: "
            "kubescheduler.config.k8s.io/v1beta2}}]}]",
            ["profiles[0].pluginConfig[0].args.apiVersion: Invalid value: "],
        ),
    ],
)
def test_a_bad_field_is_named(text: str, found: list[str]) -> None:
    shown = faults(text)

    assert len(shown) == len(found)
    assert all(one.startswith(start) for one, start in zip(shown, found, strict=True))


def test_all_faults_come_at_once_with_their_lines() -> None:
    with pytest.raises(InvalidConfig) as caught:
        read("parallelism: 0\nprofiles:\n- schedulerName: 5\nextenders: [{weight: -1}]\n")

    assert [fault.line for fault in caught.value.faults] == [3, 5, 6]
    assert str(caught.value).startswith("/c.yaml:3: parallelism: ")


def test_declared_arguments_are_complete_and_others_as_they_are() -> None:
    text = (
        "profiles: [{plugins: {filter: {enabled: [{name: Tank}]}, score: {enabled: "
        "[{name: LoadAwareScheduling}]}}, pluginConfig: [{name: LoadAwareScheduling, "
        "args: {a: 1}}]}]"
    )
    given = text.replace("pluginConfig: [", "pluginConfig: [{name: Tank, args: {kind: TankArgs}},")

    assert config(text).profiles[0].args == {"Tank": TankArgs(), "LoadAwareScheduling": {"a": 1}}
    assert config(given).profiles[0].args["Tank"] == TankArgs()


@pytest.mark.parametrize(
    ("plugins", "last"),
    [
        ("{}", True),
        ("{preBind: {enabled: [{name: DefaultPreBind}]}}", True),
        ("{preBind: {disabled: [{name: DefaultPreBind}]}}", False),
        ("{preBind: {disabled: [{name: '*'}]}}", False),
    ],
)
def test_the_patch_of_pre_bind_is_sent_where_a_profile_has_plugins(
    plugins: str, last: bool
) -> None:
    """As Koordinator adds DefaultPreBind."""
    found = names(read(f"profiles: [{{plugins: {plugins}}}]"), Point.PRE_BIND)

    assert (found[-1:] == ["DefaultPreBind"]) is last
    assert found.count("DefaultPreBind") == int(last)
    assert "DefaultPreBind" not in names(read("profiles: [{}]"), Point.PRE_BIND)


@pytest.mark.parametrize(
    ("profile", "count"),
    [
        ("{}", 1),
        ("{plugins: {preFilter: {disabled: [{name: '*'}]}}}", 1),
        (
            "{plugins: {multiPoint: {disabled: [{name: '*'}], "
            "enabled: [{name: PrioritySort}, {name: DefaultBinder}]}}}",
            1,
        ),
        ("{plugins: {preFilter: {enabled: [{name: MissingPlugins}]}}}", 1),
        ("{plugins: {multiPoint: {enabled: [{name: MissingPlugins}]}}}", 1),
        ("{plugins: {preFilter: {disabled: [{name: MissingPlugins}]}}}", 0),
        ("{plugins: {multiPoint: {disabled: [{name: MissingPlugins}]}}}", 0),
    ],
)
def test_each_profile_refuses_what_missing_plugins_would_do(profile: str, count: int) -> None:
    """Unless it disables that by its name: "*" alone would ignore such requests silently."""
    known = {**KNOWN, "MissingPlugins": KnownPlugin(frozenset({Point.PRE_FILTER}))}
    found = parse_configuration(f"{HEAD}profiles: [{profile}]".encode(), PATH, known)

    assert names(found, Point.PRE_FILTER).count("MissingPlugins") == count


def test_arguments_that_nobody_uses_are_a_warning() -> None:
    text = "profiles: [{pluginConfig: [{name: Tank}, {name: Elsewhere}, {name: Coscheduling}]}]"

    assert [str(fault) for fault in read(text).warnings] == [
        'profiles[0].pluginConfig[0]: "Tank" is configured, but not enabled; add it to '
        "plugins.filter.enabled or plugins.reserve.enabled or plugins.score.enabled",
        'profiles[0].pluginConfig[1]: "Elsewhere" is configured, but there is no such plugin',
    ]


def test_two_profiles_share_what_is_said_for_all() -> None:
    found = config(
        "percentageOfNodesToScore: 40\nprofiles: [{schedulerName: a}, "
        "{schedulerName: b, percentageOfNodesToScore: 0}]"
    )

    assert [one.percentage_of_nodes_to_score for one in found.profiles] == [40, 0]


EXTENDERS = """\
extenders:
- {urlPrefix: 'http://a:1/x/', filterVerb: filter, ignorable: true}
- urlPrefix: https://b
  prioritizeVerb: score
  weight: 5
  enableHTTPS: true
  httpTimeout: 200ms
  nodeCacheCapable: true
  tlsConfig: {certData: YQ==, keyData: c2VjcmV0, insecure: true}
  managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]
"""


def test_extenders_come_in_the_order_in_which_they_are_asked() -> None:
    """Those that may fail come last, and have 5 s to answer when nothing is said."""
    second, first = config(EXTENDERS).extenders[::-1]

    assert second == Extender(
        url_prefix="http://a:1/x/", filter_verb="filter", ignorable=True, http_timeout=5.0
    )
    assert (first.weight, first.enable_https, first.http_timeout) == (5, True, 0.2)
    assert first.managed_resources[0].ignored_by_scheduler


@pytest.mark.parametrize(
    ("one", "fault"),
    [
        ("{filterVerb: f}", "extenders[0].urlPrefix: Required value"),
        ("{urlPrefix: 'a:1'}", "extenders[0].urlPrefix: Invalid value"),
        ("{urlPrefix: 'http://[a'}", "extenders[0].urlPrefix: Invalid value"),
        (
            "{urlPrefix: 'http://a', prioritizeVerb: p}",
            "extenders[0].weight: Invalid value: 0: wanted more than 0, as there is a",
        ),
        (
            "{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}",
            'extenders[1].bindVerb: Invalid value: "b": only one extender can bind pods',
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, httpTimeout: -1s}",
            "extenders[0].httpTimeout: Invalid value",
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: cpu}]}",
            'extenders[0].managedResources[0].name: Invalid value: "cpu": wanted the name of an',
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: a.kubernetes.io/b}]}",
            "extenders[0].managedResources[0].name: Invalid value",
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: b.c/d}]},"
            "{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: b.c/d}]}",
            'extenders[1].managedResources[0].name: Duplicate value: "b.c/d"',
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, tlsConfig: {certFile: /c}}",
            "extenders[0].tlsConfig.keyFile: Required value: a certificate and its key belong",
        ),
        (
            "{urlPrefix: 'http://a', filterVerb: f, tlsConfig: {keyData: 'äh', certFile: /c}}",
            "extenders[0].tlsConfig.keyData: Invalid value: wanted base64",
        ),
    ],
)
def test_a_bad_extender_is_refused(one: str, fault: str) -> None:
    """And a value that may be a secret is not repeated."""
    (found,) = faults(f"extenders: [{one}]")

    assert found.startswith(fault)
    assert "äh" not in found


@pytest.mark.parametrize("text", ["", EXTENDERS, "percentageOfNodesToScore: 5\nprofiles: [{}]"])
def test_what_is_written_reads_back(text: str) -> None:
    found = config(text)

    again = parse_configuration(json.dumps(to_document(found)).encode(), PATH, KNOWN)
    assert again.configuration == found
    assert not again.warnings


def test_the_shipped_configuration_reads_back_without_what_is_not_built() -> None:
    found = parse_configuration(SHIPPED.encode(), PATH, KNOWN).configuration

    again = parse_configuration(json.dumps(to_document(found)).encode(), PATH, KNOWN)
    assert again.configuration.profiles[0].plugins == found.profiles[0].plugins
    assert again.configuration.profiles[0].args == found.profiles[0].args
    assert again.configuration.not_built == ()


def test_declared_arguments_are_written_with_their_kind() -> None:
    found = config("profiles: [{plugins: {filter: {enabled: [{name: Tank}]}}}]")
    (profile,) = to_document(found)["profiles"]  # type: ignore[misc]

    assert profile["pluginConfig"] == [  # type: ignore[index]
        {
            "name": "Tank",
            "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "TankArgs",
                "litres": 40,
            },
        }
    ]


def test_what_is_shown_has_no_keys() -> None:
    shown = json.dumps(to_document(without_secrets(config(EXTENDERS))))

    assert "c2VjcmV0" not in shown
    assert "YQ==" in shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_refused_in_one_family_of_errors(data: bytes) -> None:
    with pytest.raises(KoordError):
        parse_configuration(data, PATH, KNOWN)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "profiles",
                        "plugins",
                        "filter",
                        "multiPoint",
                        "enabled",
                        "name",
                        "pluginConfig",
                    ]
                    + ["args", "extenders", "tlsConfig", "managedResources", "leaderElection"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_taken_or_refused(value: object) -> None:
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    document = {**head, **value} if isinstance(value, dict) else value
    with contextlib.suppress(KoordError):
        parse_configuration(json.dumps(document).encode(), PATH, KNOWN)


def test_what_extenders_manage_fit_does_not_look_at() -> None:
    """In all profiles, beside what a profile says itself."""
    text = """\
profiles:
  - {schedulerName: a}
  - schedulerName: b
    pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [x.io/a]}}]
extenders:
  - urlPrefix: http://e
    filterVerb: filter
    managedResources:
      - {name: x.io/a, ignoredByScheduler: true}
      - {name: x.io/b, ignoredByScheduler: true}
      - {name: x.io/c}
"""
    fit = KnownPlugin(DEFAULT_POINTS["NodeResourcesFit"], ArgsType(FitArgs))
    known = {**KNOWN, "NodeResourcesFit": fit}
    config = parse_configuration((HEAD + text).encode(), PATH, known).configuration
    found = [one.args["NodeResourcesFit"] for one in config.profiles]
    assert found == [FitArgs(ignored_resources=("x.io/a", "x.io/b"))] * 2
