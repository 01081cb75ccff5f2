"""A configuration from a file: Koordinator's is taken as it is, a bad one is refused whole."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.componentconfig import Seconds
from koord.component.config.field_errors import InvalidConfig, invalid
from koord.component.plugins.args import ArgsType
from koord.controlplane.sections import ClientConnection
from koord.util.errors import KoordError
from koord_descheduler.config import (
    EvictionLimits,
    KnownPlugin,
    LeaderElection,
    Point,
    default_configuration,
    parse_configuration,
)
from koord_descheduler_plugins.low_node_load.args import LowNodeLoadArgs
from tests.support.descheduler.shipped_plugins import IN_TREE

PATH = Path("/c.yaml")
HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
# The values of Koordinator's ConfigMap descheduler-config, key koord-descheduler-config.
SHIPPED = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
enableContentionProfiling: true
enableProfiling: true
healthzBindAddress: 0.0.0.0:10251
metricsBindAddress: 0.0.0.0:10251
leaderElection:
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: koordinator-system
deschedulingInterval: 10s
dryRun: false
profiles:
- name: koord-descheduler
  plugins:
    deschedule:
      disabled:
        - name: "*"
    evict:
      disabled:
        - name: "*"
      enabled:
        - name: MigrationController
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      evictionPolicy: Eviction
      namespaces:
        exclude:
          - kube-system
          - koordinator-system
      evictQPS: "10"
      evictBurst: 1
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces:
        exclude:
          - kube-system
          - koordinator-system
      useDeviationThresholds: false
      lowThresholds:
        cpu: 45
        memory: 55
      highThresholds:
        cpu: 75
        memory: 80
"""


def test_the_shipped_configuration_is_taken_as_it_is():
    """And its LowNodeLoad, which is configured but not enabled, is reported with its line."""
    found = parse_configuration(SHIPPED.encode(), PATH, IN_TREE)

    config, profile = found.configuration, found.configuration.profiles[0]
    assert config.healthz_bind_address == config.metrics_bind_address == "0.0.0.0:10251"
    assert config.leader_election == LeaderElection()
    assert config.descheduling_interval == 10.0
    assert profile.name == "koord-descheduler"
    assert {point: profile.enabled(point) for point in Point} == {
        Point.DESCHEDULE: (),
        Point.BALANCE: (),
        Point.EVICT: ("MigrationController",),
        Point.FILTER: ("MigrationController",),
    }
    assert profile.args["MigrationController"].evict_qps == 10.0
    assert profile.args["MigrationController"].namespaces.exclude == (
        "kube-system",
        "koordinator-system",
    )
    assert [(fault.line, str(fault)) for fault in found.warnings] == [
        (
            36,
            'profiles[0].pluginConfig[1]: "LowNodeLoad" is configured, but not enabled; '
            "add it to plugins.balance.enabled",
        )
    ]


def test_with_balance_enabled_the_shipped_thresholds_count():
    text = SHIPPED.replace(
        "    evict:", "    balance: {enabled: [{name: LowNodeLoad}]}\n    evict:"
    )

    found = parse_configuration(text.encode(), PATH, IN_TREE)

    args = found.configuration.profiles[0].args["LowNodeLoad"]
    assert args.high_thresholds == {"cpu": 75.0, "memory": 80.0}
    assert args.low_thresholds == {"cpu": 45.0, "memory": 55.0}
    assert args.evictable_namespaces.exclude == ("kube-system", "koordinator-system")
    assert not found.warnings


def test_json_is_as_good_as_yaml(read):
    text = json.dumps({"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"})

    found = parse_configuration(text.encode(), PATH, IN_TREE)

    assert found.configuration == read("").configuration


def test_the_defaults(read):
    found = read("")

    config = found.configuration
    assert config == default_configuration(IN_TREE).configuration
    assert config.leader_election == LeaderElection(
        leader_elect=True,
        lease_duration=15.0,
        renew_deadline=10.0,
        retry_period=2.0,
        resource_lock="leases",
        resource_name="koord-descheduler",
        resource_namespace="koordinator-system",
    )
    assert config.client_connection == ClientConnection(
        kubeconfig="",
        content_type="application/vnd.kubernetes.protobuf",
        accept_content_types="application/vnd.kubernetes.protobuf,application/json",
        qps=50.0,
        burst=100,
    )
    assert (config.enable_profiling, config.enable_contention_profiling) == (True, True)
    assert (config.descheduling_interval, config.dry_run) == (0.0, False)
    assert config.limits == EvictionLimits()
    assert config.node_selector is None
    assert [profile.name for profile in config.profiles] == ["koord-descheduler"]
    assert config.profiles[0].args.keys() == {"MigrationController"}
    assert "single cycle" in str(found.warnings[0])


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (
            "clientConnection: {qps: 0, burst: 0}",
            "client_connection",
            ClientConnection().complete(),
        ),
        (
            "clientConnection: {acceptContentTypes: text/plain}",
            "client_connection",
            ClientConnection().complete(),
        ),
        (
            "clientConnection: {contentType: application/json, acceptContentTypes: text/plain}",
            "client_connection",
            ClientConnection(content_type="application/json", accept_content_types="text/plain"),
        ),
        (
            "leaderElection: {leaseDuration: 0s, resourceName: ''}",
            "leader_election",
            LeaderElection(),
        ),
        ("enableProfiling: false", "enable_contention_profiling", False),
        (
            "enableProfiling: false\nenableContentionProfiling: true",
            "enable_contention_profiling",
            True,
        ),
        ("deschedulingInterval: 1m30s", "descheduling_interval", 90.0),
        ("maxNoOfPodsToEvictPerNode: 0", "limits", EvictionLimits(per_node=0)),
        ("maxNoOfPodsToEvictPerNamespace: 3", "limits", EvictionLimits(per_namespace=3)),
        ("maxNoOfPodsToEvictTotal: 5", "limits", EvictionLimits(total=5)),
        ("profiles: []", "dry_run", False),
        ("profiles: null", "dry_run", False),
    ],
)
def test_single_fields(config, text, field, value):
    assert getattr(config(text), field) == value


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", "127.0.0.1:10251"),  # Koordinator: 0.0.0.0
        ("healthzBindAddress: ':8080'", "0.0.0.0:8080"),
        ("healthzBindAddress: 127.0.0.1", "127.0.0.1:10251"),
        ("healthzBindAddress: '::1'", "[::1]:10251"),
        ("healthzBindAddress: '[::1]:80'", "[::1]:80"),
        ("healthzBindAddress: ':0'", "0.0.0.0:0"),
        ("healthzBindAddress: localhost:80", "localhost:80"),
    ],
)
def test_bind_addresses(config, given, address):
    assert config(given).healthz_bind_address == address


@pytest.mark.parametrize("address", ["", "0.0.0.0:111:222", "localhost", "a:", "a:65536", "a b:1"])
def test_bad_bind_addresses(faults, address):
    found = faults(f"metricsBindAddress: '{address}'")

    assert len(found) == 1
    assert found[0].startswith(f'metricsBindAddress: Invalid value: "{address}": wanted')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dryRun: yes please", ['dryRun: Invalid value: "yes please": wanted true or false']),
        ("DryRun: true", ['DryRun: unknown field "DryRun"; did you mean "dryRun"?']),
        (
            "deschedulingInterval: 10",
            ["deschedulingInterval: Invalid value: 10: wanted a duration"],
        ),
        ("deschedulingInterval: -10s", ['deschedulingInterval: Invalid value: "-10s": wanted 0s']),
        ("maxNoOfPodsToEvictPerNode: -1", ["maxNoOfPodsToEvictPerNode: Invalid value: -1: wanted"]),
        ("maxNoOfPodsToEvictTotal: '5'", ['maxNoOfPodsToEvictTotal: Invalid value: "5": wanted']),
        (
            "evictionLedger: {spacing: -1s, settleTime: 31m}",
            [
                'evictionLedger.spacing: Invalid value: "-1s": wanted 0s to 30m0s',
                'evictionLedger.settleTime: Invalid value: "31m0s": wanted 0s to 30m0s',
            ],
        ),
        ("clientConnection: {burst: -1}", ["clientConnection.burst: Invalid value: -1: must be"]),
        (
            "leaderElection: {leaseDuration: 5s, renewDeadline: 5s, retryPeriod: -1s}",
            [
                'leaderElection.retryPeriod: Invalid value: "-1s": must be greater than zero',
                'leaderElection.leaseDuration: Invalid value: "5s": must be greater than renewDead',
            ],
        ),
        (
            "leaderElection: {leaderElect: false, leaseDuration: -5s}\nx: 1",
            ['x: unknown field "x"'],
        ),
        (
            "nodeSelector: {matchExpressions: [{key: a, operator: Near}]}",
            [
                'nodeSelector: Invalid value: {"matchExpressions": '
                '[{"key": "a", "operator": "Near"}]}: selector.matchExpressions[0].operator'
            ],
        ),
        (
            "profiles: [{name: a}, {}, {name: a}]",
            ['profiles[2].name: Duplicate value: "a"', "profiles[1].name: Required value"],
        ),
        (
            "profiles: [{nodeSelector: {matchLabels: {'-': x}}}]",
            ['profiles[0].nodeSelector: Invalid value: {"matchLabels": {"-": "x"}}: selector'],
        ),
        ("dryRun: true\ndryRun: false", ['dryRun: duplicate field "dryRun": it is on line 3, too']),
        (
            "profiles: [{plugins: {sort: {enabled: [{name: X}]}}}]",
            ['profiles[0].plugins.sort: unknown field "sort"'],
        ),
        (
            "profiles: [{plugins: {balance: {enabled: [{name: LowNodeLoda}]}}}]",
            [
                'profiles[0].plugins.balance.enabled[0].name: Invalid value: "LowNodeLoda": '
                'BalancePlugin "LowNodeLoda" does not exist; did you mean "LowNodeLoad"?'
            ],
        ),
        (
            "profiles: [{plugins: {deschedule: {enabled: [{name: LowNodeLoad}]}}}]",
            [
                'profiles[0].plugins.deschedule.enabled[0].name: Invalid value: "LowNodeLoad": '
                'plugin "LowNodeLoad" does not extend DeschedulePlugin plugin; it is for balance'
            ],
        ),
        (
            "profiles: [{plugins: {balance:"
            " {enabled: [{name: LowNodeLoad}, {name: LowNodeLoad}]}}}]",
            [
                'profiles[0].plugins.balance.enabled[1].name: Invalid value: "LowNodeLoad": '
                'plugin "LowNodeLoad" already registered as "BalancePlugin"'
            ],
        ),
        (
            "profiles: [{plugins: {evict: {enabled: [{name: DefaultEvictor}]}}}]",
            [
                'profiles[0].plugins.evict: Invalid value: ["DefaultEvictor"]: only one evict '
                "plugin can be enabled; disable one of DefaultEvictor, MigrationController"
            ],
        ),
        (
            "profiles: [{plugins: {evict: {disabled: [{name: '*'}]}}}]",
            ["profiles[0].plugins.evict: Required value: no evict plugin is enabled"],
        ),
        (
            "profiles: [{pluginConfig: [{name: LowNodeLoad}, {name: LowNodeLoad}, {}]}]",
            [
                'profiles[0].pluginConfig[1].name: Duplicate value: "LowNodeLoad"',
                "profiles[0].pluginConfig[2].name: Required value",
            ],
        ),
        (
            "profiles: [{pluginConfig: [{name: LowNodeLoad, args: 3}]}]",
            ["profiles[0].pluginConfig[0].args: Invalid value: 3: wanted an object"],
        ),
        (
            "profiles: [{pluginConfig: [{name: LowNodeLoad, args: {kind: Foo}}]}]",
            [
                'profiles[0].pluginConfig[0].args.kind: Invalid value: "Foo": '
                'wanted "LowNodeLoadArgs"'
            ],
        ),
        (
            "profiles: [{pluginConfig: [{name: LowNodeLoad, args: {nodefit: true}}]}]",
            ['profiles[0].pluginConfig[0].args.nodefit: unknown field "nodefit"; did you mean'],
        ),
        (
            "profiles: [{plugins: {balance: {enabled: [{name: HighNodeUtilization}]}}}]",
            [
                "profiles[0].pluginConfig[HighNodeUtilization].args.thresholds: Required value: "
                "a percentage for at least one resource"
            ],
        ),
        ("profiles: 3", ["profiles: Invalid value: 3: wanted a list"]),
        ("profiles: [{name: 3}]", ["profiles[0].name: Invalid value: 3: wanted a text"]),
    ],
)
def test_each_fault_names_field_value_and_wish(faults, text, found):
    """All faults of a file are there, and no others."""
    lines = faults(text)

    assert len(lines) == len(found)
    assert all(line.startswith(start) for line, start in zip(lines, found, strict=True)), lines


def test_all_faults_are_reported_with_their_lines():
    text = f"{HEAD}dryRun: 1\nprofiles:\n- name: a\n  x: 1\n- name: a\ndeschedulingInterval: 1\n"

    with pytest.raises(InvalidConfig) as caught:
        parse_configuration(text.encode(), PATH, IN_TREE)

    assert [fault.line for fault in caught.value.faults] == [3, 6, 7, 8]
    assert str(caught.value).startswith(
        "/c.yaml:3: dryRun: Invalid value: 1: wanted true or false;"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "wanted an object of kind DeschedulerConfiguration"),
        ("- 1\n", "wanted an object of kind DeschedulerConfiguration"),
        ("kind: DeschedulerConfiguration\n", "apiVersion: Required value: descheduler/v1alpha2"),
        (HEAD.replace("alpha2", "alpha1"), 'Invalid value: "descheduler/v1alpha1"'),
        (
            "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n",
            'kind: Invalid value: "DeschedulerPolicy": DeschedulerConfiguration',
        ),
        ("a: &x [1]\nb: *x\n", "the alias *x"),
        ("a: [" * 200, "not YAML"),
    ],
)
def test_another_document_is_refused(text, message):
    with pytest.raises(KoordError) as caught:
        parse_configuration(text.encode(), PATH, IN_TREE)

    assert message in str(caught.value)


def test_a_plugin_at_two_points_has_one_entry(read):
    """Default arguments are added once for each enabled plugin that has none."""
    found = read(
        "deschedulingInterval: 1s\n"
        "profiles: [{plugins: {evict: {disabled: [{name: '*'}], enabled: [{name: DefaultEvictor}]},"
        " balance: {enabled: [{name: LowNodeLoad}]}}}]"
    )

    assert list(found.configuration.profiles[0].args) == [
        "DefaultEvictor",
        "LowNodeLoad",
        "MigrationController",  # of filter
    ]


def test_flags_win_over_the_file_and_are_validated_with_it():
    text = HEAD + "leaderElection: {leaseDuration: 30s, renewDeadline: 20s}\n"

    found = parse_configuration(text.encode(), PATH, IN_TREE, {"lease_duration": 40.0})
    with pytest.raises(InvalidConfig, match="must be greater than renewDeadline"):
        parse_configuration(text.encode(), PATH, IN_TREE, {"lease_duration": 20.0})

    assert found.configuration.leader_election.lease_duration == 40.0
    assert found.configuration.leader_election.renew_deadline == 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QuietNodesArgs:
    """Arguments of a third party's plugin."""

    quiet_below: float = 20.0
    wait: Seconds = 60.0

    def validate(self):
        if self.quiet_below == 13.0:
            raise RuntimeError("unlucky")
        if not 0 <= self.quiet_below <= 100:
            yield invalid(("quietBelow",), self.quiet_below, "wanted 0 to 100 percent")


KNOWN = {
    **IN_TREE,
    "QuietNodes": KnownPlugin(frozenset({Point.BALANCE}), ArgsType(QuietNodesArgs)),
    "Loose": KnownPlugin(frozenset({Point.BALANCE})),
}


def third_party(plugin, text):
    """Read a profile with one plugin of a third party."""
    document = f"""{HEAD}
profiles:
- plugins: {{balance: {{enabled: [{{name: {plugin}}}]}}}}
  pluginConfig: [{{name: {plugin}, args: {text}}}]
"""
    return (
        parse_configuration(document.encode(), PATH, KNOWN).configuration.profiles[0].args[plugin]
    )


def test_a_third_partys_arguments_are_read_like_those_of_the_tree():
    assert third_party("QuietNodes", "{wait: 5s}") == QuietNodesArgs(wait=5.0)
    assert third_party("QuietNodes", "null") == QuietNodesArgs()
    assert third_party("Loose", "{any: [thing]}") == {"any": ["thing"]}


@pytest.mark.parametrize(
    ("plugin", "text", "message"),
    [
        ("QuietNodes", "{wait: 5}", "args.wait: Invalid value: 5: wanted a duration"),
        ("QuietNodes", "{Wait: 5s}", 'args.Wait: unknown field "Wait"; did you mean "wait"?'),
        ("QuietNodes", "{quietBelow: 101}", "args.quietBelow: Invalid value: 101.0: wanted 0 to"),
        ("QuietNodes", "{quietBelow: 13}", "checking it failed: RuntimeError('unlucky')"),
        ("Loose", "[1]", "args: Invalid value: [1]: wanted an object"),
    ],
)
def test_a_third_partys_arguments_are_refused_like_those_of_the_tree(plugin, text, message):
    with pytest.raises(InvalidConfig) as caught:
        third_party(plugin, text)

    assert message in str(caught.value)


def test_arguments_of_an_unknown_plugin_are_a_warning(read):
    found = read("deschedulingInterval: 1s\nprofiles: [{pluginConfig: [{name: Nope, args: {}}]}]")

    assert [str(fault) for fault in found.warnings] == [
        'profiles[0].pluginConfig[0]: "Nope" is configured, but there is no such plugin'
    ]


def test_the_counters_of_low_node_load_outlive_two_cycles(config):
    """detectorCacheTimeout is at least twice the interval."""
    text = "profiles: [{plugins: {balance: {enabled: [{name: LowNodeLoad}]}}}]"

    short = config(f"deschedulingInterval: 10s\n{text}").profiles[0].args["LowNodeLoad"]
    long = config(f"deschedulingInterval: 1h\n{text}").profiles[0].args["LowNodeLoad"]

    assert isinstance(short, LowNodeLoadArgs)
    assert (short.detector_cache_timeout, long.detector_cache_timeout) == (300.0, 7200.0)


_LINES = st.lists(
    st.sampled_from(SHIPPED.splitlines())
    | st.text(st.characters(codec="ascii"), max_size=20)
    | st.sampled_from(["  - x", "name: 3", "dryRun: 5", "profiles: {}", "\t", "kind:"]),
    max_size=30,
)


@given(_LINES)
def test_whatever_a_file_says_it_is_read_or_refused(lines):
    """Nothing but a KoordError comes out, and its message has the file."""
    for document in ("\n".join(lines), "\n".join([HEAD, *lines])):
        try:
            parse_configuration(document.encode(), PATH, IN_TREE)
        except KoordError as err:
            message = str(err)
        else:
            message = str(PATH)
        assert str(PATH) in message
