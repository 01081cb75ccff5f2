"""The limits of a pod's containers together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Container, Pod, Share, pod_limit, running_total

AMOUNT = st.integers(0, 10**12)


def limited(cpu: str, *, sidecar: bool = False) -> Container:
    policy = "Always" if sidecar else ""
    return Container("c", limits={"cpu": cpu} if cpu else {}, restart_policy=policy)


def pod(*containers: Container, init: tuple[Container, ...] = (), **more: object) -> Pod:
    return Pod("shop", "web", "u", containers=containers, init_containers=init, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "milli"),
    [
        (pod(limited("1"), limited("500m")), 1500),
        (pod(limited("1"), limited("")), None),
        (pod(limited("1"), limited("0")), None),
        (pod(limited("1"), init=(limited(""),)), None),
        (pod(limited("1"), init=(limited("3"),)), 3000),
        (pod(limited("1"), init=(limited("300m", sidecar=True),)), 1300),
        (pod(limited("1"), init=(limited("300m", sidecar=True), limited("2"))), 2300),
        (pod(limited("1"), init=(limited("2"), limited("300m", sidecar=True))), 2000),
        (pod(limited("1"), overhead={"cpu": "250m"}), 1250),
        (pod(limited("1"), limited(""), limits={"cpu": "4"}), 4000),
        (pod(limited("1"), limits={"memory": "4Gi"}), 1000),
        (pod(limited(""), overhead={"cpu": "250m"}), None),
        (pod(), None),
    ],
)
def test_cpu_limit_of_a_pod(found: Pod, milli: int | None) -> None:
    """As the kubelet sets it: none as soon as one container has none."""
    limit = pod_limit(found, "cpu")

    assert (limit.milli if limit else None) == milli


@given(st.lists(AMOUNT), st.lists(st.builds(Share, AMOUNT, st.booleans())))
def test_a_total_holds_everything_that_runs_at_a_time(
    regular: list[int], init: list[Share]
) -> None:
    """Regular containers beside all sidecars, and each init container."""
    total = running_total(regular, init)

    sidecars = sum(share.amount for share in init if share.sidecar)
    assert total >= sum(regular) + sidecars
    assert all(total >= share.amount for share in init)
    assert total <= sum(regular) + sum(share.amount for share in init)
