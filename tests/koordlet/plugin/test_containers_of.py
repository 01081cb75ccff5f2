"""Which containers of a pod plugins look after."""

from dataclasses import replace

from koord.api.pod import Container
from koordlet.plugin.pods import containers_of
from koordlet.plugin.testing import make_pod


def test_those_that_the_spec_names():
    """A cgroup that it does not name is a sandbox, or another one's."""
    meta = make_pod("web", containers=(Container("a"), Container("b")))
    named = replace(meta, pod=replace(meta.pod, containers=(Container("a"),)))
    assert [one.name for one in containers_of(named)] == ["a"]


def test_all_of_a_pod_that_is_known_from_the_cgroup_tree_alone():
    """As standalone: there is no spec to name them."""
    meta = make_pod("web", containers=(Container("a"), Container("b")))
    bare = replace(meta, pod=replace(meta.pod, containers=(), init_containers=()))
    assert [one.name for one in containers_of(bare)] == ["a", "b"]


def test_none_of_a_virtual_machine():
    meta = make_pod("web")
    assert not list(containers_of(replace(meta, pod=replace(meta.pod, runtime_class="kata"))))
