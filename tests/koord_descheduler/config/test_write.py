"""What --write-config-to writes reads back to the same configuration."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import LabelSelector, Requirement
from koord.component.config.componentconfig import to_json
from koord.controlplane.sections import ClientConnection
from koord.util.documents import to_yaml
from koord_descheduler.config import (
    Configuration,
    DeschedulerConfiguration,
    DeschedulerProfile,
    EvictionLedger,
    KnownPlugin,
    LeaderElection,
    Namespaces,
    PluginConfig,
    PluginName,
    Plugins,
    PluginSet,
    Point,
    convert,
    parse_configuration,
    to_document,
)
from koord_descheduler_plugins.low_node_load.args import (
    AnomalyCondition,
    LowNodeLoadArgs,
    NodePoolArgs,
    Planner,
)
from koord_descheduler_plugins.migration.args import MigrationControllerArgs, ObjectLimiter
from tests.support.descheduler.shipped_plugins import IN_TREE

KNOWN = {**IN_TREE, "Loose": KnownPlugin(frozenset({Point.BALANCE}))}

_NAMES = st.text("abcxyz019", min_size=1, max_size=5).map(lambda text: f"n{text}")
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_PERCENTS = st.dictionaries(_NAMES, st.floats(50, 100), max_size=3)
_LOW = st.dictionaries(_NAMES, st.floats(0, 50), max_size=3)
_SECONDS = st.integers(1, 10**15).map(lambda nanoseconds: nanoseconds / 1e9)
_SELECTORS = st.none() | st.builds(
    LabelSelector,
    match_labels=st.dictionaries(_NAMES, _NAMES, max_size=2),
    match_expressions=st.lists(
        st.builds(Requirement, key=_NAMES, operator=st.just("In"), values=st.tuples(_NAMES)),
        max_size=2,
    ).map(tuple),
)
_COUNTS = st.none() | st.integers(0, 2**31 - 1)
_CONDITIONS = st.none() | st.builds(
    AnomalyCondition, timeout=_SECONDS, consecutive_abnormalities=st.integers(0, 9)
)
_LOADS = st.builds(
    LowNodeLoadArgs,
    paused=st.booleans(),
    high_thresholds=st.none() | _PERCENTS,
    low_thresholds=st.none() | _LOW,
    resource_weights=st.none() | st.dictionaries(_NAMES, st.integers(0, 9), max_size=2),
    anomaly_condition=_CONDITIONS,
    detector_cache_timeout=_SECONDS,
    evictable_namespaces=st.none()
    | st.builds(Namespaces, exclude=st.lists(_TEXTS, max_size=2).map(tuple)),
    node_pools=st.lists(
        st.builds(
            NodePoolArgs,
            name=_TEXTS,
            node_selector=_SELECTORS,
            low_thresholds=st.none() | _LOW,
            anomaly_condition=_CONDITIONS,
        ),
        max_size=2,
    ).map(tuple),
    planner=st.sampled_from(Planner),
)
_MIGRATIONS = st.builds(
    MigrationControllerArgs,
    max_migrating_globally=_COUNTS,
    max_migrating_per_workload=st.sampled_from([None, 3, "10%"]),
    object_limiters=st.dictionaries(
        st.sampled_from(["workload", "namespace"]), st.builds(ObjectLimiter, duration=_SECONDS)
    ),
    evict_qps=st.floats(0.001, 1e9),
    default_delete_options=st.none() | st.dictionaries(_TEXTS, st.integers(0, 9), max_size=2),
)
_LOOSE = st.dictionaries(_TEXTS, st.none() | st.lists(_TEXTS, max_size=2), max_size=3)


def _names(*names):
    return tuple(PluginName(name=name) for name in names)


@st.composite
def profiles(draw, name):
    config = [("LowNodeLoad", _LOADS), ("MigrationController", _MIGRATIONS), ("Loose", _LOOSE)]
    chosen = draw(st.lists(st.sampled_from(config), unique_by=lambda one: one[0]))
    balance = draw(st.permutations(["LowNodeLoad", "Loose", "RemoveDuplicates"]))
    evict = draw(st.sampled_from(["DefaultEvictor", "MigrationController"]))
    return DeschedulerProfile(
        name=name,
        node_selector=draw(_SELECTORS),
        plugins=Plugins(
            balance=PluginSet(enabled=_names(*balance[: draw(st.integers(0, 3))])),
            evict=PluginSet(enabled=_names(evict), disabled=_names("*")),
            filter=draw(st.sampled_from([None, PluginSet(disabled=_names("*"))])),
        ),
        plugin_config=tuple(
            PluginConfig(
                name=plugin, args=to_json(draw(strategy)) if plugin != "Loose" else draw(strategy)
            )
            for plugin, strategy in chosen
        ),
        dry_run=draw(st.booleans()),
    )


@st.composite
def configurations(draw) -> Configuration:
    """Any configuration without faults."""
    names = draw(st.lists(_NAMES, unique=True, min_size=1, max_size=3))
    external = DeschedulerConfiguration(
        leader_election=LeaderElection(
            leader_elect=draw(st.booleans()), lease_duration=20.0, resource_name=draw(_NAMES)
        ),
        client_connection=draw(
            st.builds(
                ClientConnection, kubeconfig=_TEXTS, content_type=_TEXTS, qps=st.floats(1, 99)
            )
        ),
        enable_profiling=draw(st.booleans()),
        enable_contention_profiling=draw(st.none() | st.booleans()),
        healthz_bind_address=draw(st.sampled_from([None, ":0", "[::1]:1", "10.0.0.1"])),
        descheduling_interval=draw(st.just(0.0) | _SECONDS),
        dry_run=draw(st.booleans()),
        profiles=tuple(draw(profiles(name)) for name in names),
        node_selector=draw(_SELECTORS),
        max_no_of_pods_to_evict_per_node=draw(_COUNTS),
        max_no_of_pods_to_evict_total=draw(_COUNTS),
        eviction_ledger=draw(
            st.builds(EvictionLedger, enabled=st.booleans(), spacing=st.floats(0, 9).map(round))
        ),
    )
    config, faults = convert(external.complete(), KNOWN)
    assert not [str(fault) for fault in faults if not fault.is_warning]
    return config


@given(configurations())
def test_what_is_written_reads_back(config):
    text = to_yaml(to_document(config))

    assert parse_configuration(text.encode(), Path("/c.yaml"), KNOWN).configuration == config


def test_reading_back_gives_no_more_warnings(read):
    """Arguments of plugins that are not enabled are not written."""
    found = read("deschedulingInterval: 1s\nprofiles: [{pluginConfig: [{name: LowNodeLoad}]}]")
    assert found.warnings

    text = to_yaml(to_document(found.configuration))
    again = parse_configuration(text.encode(), Path("/c"), KNOWN)

    assert again.configuration == found.configuration
    assert not again.warnings


@pytest.mark.parametrize("evict", ["DefaultEvictor", "MigrationController"])
def test_the_written_evict_plugin_is_the_only_one(config, evict):
    """The defaults are disabled in what is written, else they were added at the next reading."""
    plugin_set = f"{{disabled: [{{name: '*'}}], enabled: [{{name: {evict}}}]}}"
    found = config(f"profiles: [{{plugins: {{evict: {plugin_set}}}}}]")

    plugins = to_document(found)["profiles"][0]["plugins"]

    assert plugins["evict"] == {"enabled": [{"name": evict}], "disabled": [{"name": "*"}]}
