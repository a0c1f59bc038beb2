import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.webhook.errors import StartError
from holdfast.webhook.kube.leader_election import (
    LEASE,
    LEASE_SECONDS,
    RENEW_DEADLINE,
    RETRY_SECONDS,
    Leader,
    own_namespace,
)
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.fakes import FakeApi, raising, status_error, unreachable

PATH = f"/apis/coordination.k8s.io/v1/namespaces/system/leases/{LEASE}"
WALL = 1_800_000_000.0


class Election:
    """Candidates that share an API server, on clocks that the test moves."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.time = 1_000.0
        self.stepped = 0.0
        self.uncertain = 0.0

    def server_time(self) -> float:
        return WALL + self.time + self.stepped - self.uncertain

    def candidate(
        self, name: str = "a", *, ahead: float = 0.0, has_server_time: bool = True
    ) -> Leader:
        """Make a candidate whose clock is ahead, with or without the API server's time."""
        return Leader(
            self.api,
            ControllerMetrics(),
            namespace="system",
            server_time=lambda: self.server_time() if has_server_time else None,
            now=lambda: self.time + ahead,
            identity=name,
        )

    @property
    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.objects[PATH]["spec"]
        return spec

    def edit(self, **fields: Any) -> None:
        """Change the Lease as another client may."""
        self.api.put(PATH, {"spec": {**self.lease, **fields}})


def led() -> tuple[Election, Leader]:
    """Return an election with one candidate, which leads."""
    election = Election()
    leader = election.candidate()
    leader.try_acquire_or_renew()
    return election, leader


def contested() -> tuple[Election, Leader, Leader]:
    """Return an election with two candidates, the first of which leads."""
    election, first = led()
    return election, first, election.candidate("b")


def assert_acquires_on_expiry(election: Election, candidate: Leader) -> None:
    """Let the Lease duration pass: the candidate leads at its end, and not a moment earlier."""
    election.time += LEASE_SECONDS - 0.001
    candidate.try_acquire_or_renew()
    assert not candidate.leading()
    election.time += 0.001
    candidate.try_acquire_or_renew()
    assert candidate.leading()


def test_leadership_ends_at_the_renew_deadline_and_leading_again_begins_a_new_term() -> None:
    election = Election()
    leader = election.candidate()
    assert leader.term() == 0
    for expected in (1, 1):
        leader.try_acquire_or_renew()
        assert leader.term() == expected
    election.time += RENEW_DEADLINE - 0.001
    assert leader.leading()
    election.time += 0.001
    assert not leader.leading()
    leader.try_acquire_or_renew()
    assert leader.term() == 2


def test_first_candidate_creates_the_lease_and_renews_only_its_time() -> None:
    election = Election()
    leader = election.candidate()
    assert not leader.leading()
    leader.try_acquire_or_renew()
    assert leader.leading()
    lease = election.lease
    assert lease == {
        "holderIdentity": "a",
        "leaseDurationSeconds": LEASE_SECONDS,
        "acquireTime": "2027-01-15T08:16:40.000000Z",
        "renewTime": "2027-01-15T08:16:40.000000Z",
        "leaseTransitions": 0,
    }
    election.time += RETRY_SECONDS
    leader.try_acquire_or_renew()
    assert election.lease == {**lease, "renewTime": "2027-01-15T08:16:42.000000Z"}
    assert [method for method, _ in election.api.requests] == ["GET", "PUT", "PUT"]


@pytest.mark.parametrize("has_server_time", [True, False])
def test_standby_takes_over_an_expired_lease(has_server_time: bool) -> None:
    election = Election()
    first = election.candidate("a", has_server_time=has_server_time)
    second = election.candidate("b", has_server_time=has_server_time, ahead=1e6)
    first.try_acquire_or_renew()
    second.try_acquire_or_renew()
    assert_acquires_on_expiry(election, second)
    assert not first.leading()
    assert election.lease["holderIdentity"] == "b"
    assert election.lease["leaseTransitions"] == 1
    first.try_acquire_or_renew()
    assert not first.leading()


def test_new_candidate_takes_an_expired_lease_at_once() -> None:
    election, _, second = contested()
    election.time += LEASE_SECONDS - 0.001
    second.try_acquire_or_renew()
    assert not second.leading()
    third = election.candidate("c")
    election.time += 0.001
    third.try_acquire_or_renew()
    assert third.leading()


@pytest.mark.parametrize(
    "renewed", ["2100-01-01T00:00:00.000000Z", "10000-01-01T00:00:00.000000Z", "", "soon", None]
)
def test_lease_with_an_unusable_time_expires_by_the_local_clock(renewed: str | None) -> None:
    election, _, second = contested()
    election.edit(renewTime=renewed)
    second.try_acquire_or_renew()
    assert_acquires_on_expiry(election, second)


def test_long_lease_duration_is_capped() -> None:
    election, _, second = contested()
    far_future = "2100-01-01T00:00:00.000000Z"
    election.edit(holderIdentity="thief", leaseDurationSeconds=2**31 - 1, renewTime=far_future)
    second.try_acquire_or_renew()
    assert_acquires_on_expiry(election, second)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"holderIdentity": "", "leaseTransitions": 2**31 - 1}, id="transitions"),
        pytest.param(
            {"holderIdentity": "a", "acquireTime": "10000-01-01T00:00:00.000000Z"}, id="year"
        ),
    ],
)
def test_invalid_lease_values_are_not_written_back(fields: dict[str, Any]) -> None:
    election, first = led()
    election.edit(**fields)
    for _ in range(2):
        first.try_acquire_or_renew()  # the first write conflicts
    assert first.leading()
    assert election.lease["leaseTransitions"] < 2**31
    assert election.lease["acquireTime"].startswith("2027-")


def test_clock_steps_change_the_leader_only_once() -> None:
    election, first, second = contested()
    for step in 3600.0, -3600.0, 0.0:
        election.stepped = step
        for _ in range(5):
            second.try_acquire_or_renew()
            first.try_acquire_or_renew()
            first.try_acquire_or_renew()  # its first write conflicts
            election.time += RETRY_SECONDS
        assert second.leading()
        assert not first.leading()


def test_lease_times_are_ignored_without_the_server_clock() -> None:
    election = Election()
    first = election.candidate("a", has_server_time=False)
    second = election.candidate("b", has_server_time=False)
    first.try_acquire_or_renew()
    election.edit(renewTime="1970-01-01T00:00:00.000000Z", acquireTime=None)
    second.try_acquire_or_renew()
    assert not second.leading()
    election.edit(renewTime="2100-01-01T00:00:00.000000Z")
    election.time += LEASE_SECONDS + 1
    second.try_acquire_or_renew()
    assert not second.leading()  # the Lease changed, so its duration starts again
    election.time += LEASE_SECONDS
    second.try_acquire_or_renew()
    assert second.leading()


def test_failed_read_does_not_restart_the_wait() -> None:
    election, _, second = contested()
    second.try_acquire_or_renew()
    for _ in range(int(LEASE_SECONDS / RETRY_SECONDS)):
        election.time += RETRY_SECONDS
        election.api.before("GET", raising(unreachable()))
        second.try_acquire_or_renew()
    second.try_acquire_or_renew()
    assert second.leading()


def test_released_lease_is_acquired_at_once_and_resigning_never_raises() -> None:
    election, first, second = contested()
    second.try_acquire_or_renew()
    first.resign()
    assert not first.leading()
    assert election.lease["holderIdentity"] == ""
    second.try_acquire_or_renew()
    assert second.leading()
    first.resign()
    assert election.lease["holderIdentity"] == "b"
    election.api.before("PUT", raising(unreachable()))
    second.resign()
    assert not second.leading()


def test_leader_recovers_from_a_lost_renewal_response() -> None:
    election, leader = led()
    election.time += RETRY_SECONDS
    election.api.after("PUT", raising(unreachable()))
    leader.try_acquire_or_renew()
    assert leader.leading()  # thanks to the previous renewal
    election.time += RETRY_SECONDS
    leader.try_acquire_or_renew()
    election.time += RENEW_DEADLINE - 1
    assert leader.leading()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(unreachable(), id="unreachable"),
        pytest.param(status_error(500), id="server-error"),
        pytest.param(status_error(403), id="forbidden"),
        pytest.param(status_error(404), id="not-from-kubernetes"),
    ],
)
def test_failure_is_logged_and_retried(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    election = Election()
    leader = election.candidate()
    election.api.before("GET", raising(error))
    leader.try_acquire_or_renew()
    assert not leader.leading()
    assert f"cannot acquire or renew Lease system/{LEASE}: {error}" in caplog.text
    leader.try_acquire_or_renew()
    assert leader.leading()


def test_lost_race_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    election = Election()
    first, second = election.candidate("a"), election.candidate("b")

    def overtake(method: str, _path: str) -> None:
        if method == "PUT":
            election.api.on_request = lambda _method, _path: None
            second.try_acquire_or_renew()

    election.api.on_request = overtake
    first.try_acquire_or_renew()
    assert second.leading()
    assert not first.leading()
    assert "cannot acquire" not in caplog.text


def test_leader_steps_down_when_another_holds_the_lease() -> None:
    election, leader = led()
    election.edit(holderIdentity="b")
    leader.try_acquire_or_renew()  # the write conflicts
    leader.try_acquire_or_renew()
    assert not leader.leading()
    assert election.lease["holderIdentity"] == "b"


def test_empty_lease_is_acquired() -> None:
    election = Election()
    election.api.put(PATH, {})
    leader = election.candidate()
    leader.try_acquire_or_renew()
    assert leader.leading()


def test_leadership_changes_update_metrics_and_notify_listeners() -> None:
    election = Election()
    leader = election.candidate()
    metrics = leader.metrics
    leading: list[bool] = []
    leader.on_started_leading(lambda: leading.append(leader.leading()))
    assert b"\nholdfast_leader 0.0" in metrics.exposition()
    leader.try_acquire_or_renew()
    assert b"\nholdfast_leader 1.0" in metrics.exposition()
    election.time += RENEW_DEADLINE
    assert b"\nholdfast_leader 0.0" in metrics.exposition()
    election.api.before("GET", raising(unreachable()))
    leader.try_acquire_or_renew()
    leader.try_acquire_or_renew()
    assert leading == [True, True]
    text = metrics.exposition()
    assert b'holdfast_leader_transitions_total{to="leading"} 2.0' in text
    assert b'holdfast_leader_transitions_total{to="standby"} 1.0' in text


def test_run_ends_on_stop() -> None:
    election = Election()
    leader = election.candidate()
    stop = threading.Event()
    leader.on_started_leading(stop.set)
    leader.run(stop)
    assert leader.leading()


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # index of the candidate
        st.floats(0.0, 15.0),  # idle seconds before its attempt
        st.floats(0.0, 15.0),  # seconds that each of its requests takes
        st.sampled_from(["works", "works", "works", "lost request", "lost response", "resigns"]),
        st.floats(0.0, 1.0),  # uncertainty of the server time in seconds
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS)
def test_there_are_never_two_leaders(steps: list[tuple[int, float, float, str, float]]) -> None:
    election = Election()
    candidates = [election.candidate(str(number), ahead=10.0**number) for number in range(3)]

    def check() -> None:
        assert sum(candidate.leading() for candidate in candidates) <= 1

    for number, idle, duration, outcome, uncertain in steps:
        election.time += idle
        election.uncertain = uncertain
        check()
        if outcome == "resigns":
            candidates[number].resign()
            check()
            continue

        def pass_time(method: str, _path: str, *, seconds: float = duration / 2) -> None:
            election.time += seconds
            check()

        election.api.on_request = election.api.on_response = pass_time
        if outcome == "lost request":
            election.api.before("PUT", raising(unreachable()))
        if outcome == "lost response":
            election.api.after("PUT", raising(unreachable()))
        candidates[number].try_acquire_or_renew()
        check()
        election.api.on_request = election.api.on_response = lambda _method, _path: None
        election.api.forget_actions()


def test_namespace_is_read_from_the_pod_file(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    file.write_text("holdfast-system\n")
    assert own_namespace(file) == "holdfast-system"
    with pytest.raises(
        StartError,
        match=r"^no namespace: .*/none cannot be read \(.*\); give one with --namespace$",
    ):
        own_namespace(tmp_path / "none")
