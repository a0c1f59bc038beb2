"""The fuzz targets: functions that take bytes and fail if a property does not hold.

They use neither hypothesis nor pytest nor the fuzzer: `make fuzz` calls them millions of times, and
`tests/tooling/test_fuzz_corpus.py` once with each seed and each input in the corpus.
"""

import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from kubernetes.config import kube_config

from holdfast.webhook import plugins, safe_json
from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model import durations, pace, syntax
from holdfast.webhook.model.annotations import (
    HELD_ANNOTATION,
    NEVER_MS,
    decide_due,
    format_hint,
    read_hint,
)
from holdfast.webhook.model.calendar import windows as calendar
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL, read_freeze
from holdfast.webhook.model.objects import ApiObject, Metadata
from holdfast.webhook.plugins.after import targets
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.registration import configurations
from holdfast.webhook.runtime import pipelines
from tests.server import parsing
from tests.support import hostile, kubeconfigs
from tests.support.builders import CREATED_MS, UID
from tests.support.delay_values import MAX_INT64
from tests.support.oracle import Refused, oracle_delay

Target = Callable[[bytes], None]

FORBIDDEN = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}) | {
    "socket.connect",
    "socket.getaddrinfo",
}
"""Audit events that no input may cause: a kubeconfig can name programs to run."""
MESSAGE_LIMIT, VALUE_MESSAGE_LIMIT = 2_000, 250
LONGEST = MAX_INT64 // 10**6
"""The longest Go duration in milliseconds; delays in whole seconds can be longer."""
DST_MS = durations.parse_instant("2026-10-25T00:30:00Z")
"""Shortly before daylight saving time ends in Europe."""
WAITED = targets.by_name(targets.BUILT_IN.values())
EPOCH_DAY = datetime(1970, 1, 1).toordinal()  # noqa: DTZ001 - only the day counts
_apart = False


def reviews(content: bytes) -> None:
    """Check that both endpoints return a valid response or a clean 400, and that patches apply.

    The field `vm`, alongside `request`, contains the annotations of the only VM.
    """
    review = _read(content)
    annotations = review.get("vm") if isinstance(review, dict) else None
    texts = annotations if isinstance(annotations, dict) else {}
    hostile.SERVER.annotate_vm({k: v for k, v in texts.items() if isinstance(v, str)})
    for path in hostile.PATHS:
        response = hostile.check(path, content)
        if response is not None and _is_whole(review):
            hostile.check_answer(response, review)


def configuration(content: bytes) -> None:
    """Check that a configuration file is accepted, or rejected with a message of one line.

    An accepted file is accepted again with the same digest, and yields policies.
    """
    try:
        profiles = _profiles(content)
    except ConfigurationError as exc:
        message = str(exc)
        assert message.startswith("h.yaml: "), message
        assert message.isprintable(), ascii(message)
        assert len(message) <= MESSAGE_LIMIT, len(message)
        return
    assert configurations.digest(profiles) == configurations.digest(_profiles(content))
    json.dumps(pod_policies.policies(profiles))


def kubeconfig(content: bytes) -> None:
    """Check that a kubeconfig is accepted, or rejected with a message of one line."""
    file = _folder() / "config"
    with no_deeds():
        complaint = kubeconfigs.complaint(file, content)
    kube_config._cleanup_temp_files()  # type: ignore[no-untyped-call]
    if complaint and "forbidden here" not in complaint:
        kubeconfigs.check(complaint, file)


def requests(content: bytes) -> None:
    """Check that bytes on a connection yield a request or a clean 4xx.

    The first three bytes are the offsets at which the rest is cut into pieces. Each review must
    equal the one that gunicorn's parser reads.
    """
    cuts, stream = list(content[:3]), content[3:]
    parsing.check(parsing.cut(stream, cuts))


def delays(content: bytes) -> None:
    """Check that a delay equals that of the oracle: rounded up, never down."""
    text = content.decode(errors="replace")
    try:
        exact, rounded = oracle_delay(text)
    except Refused:
        _refused(durations.parse_delay, text)
        return
    milliseconds = durations.parse_delay(text)
    assert milliseconds >= exact / 10**6, "rounded down"
    assert milliseconds == -(-rounded.numerator // (rounded.denominator * 10**6))
    if milliseconds <= LONGEST:
        assert milliseconds == durations.parse_delay(durations.canonical_delay(milliseconds))


def instants(content: bytes) -> None:
    """Check that a time equals that of `datetime`, if in its range, and is never rounded down."""
    text = content.decode(errors="replace")
    try:
        milliseconds = durations.parse_instant(text)
    except InvalidValueError:
        _refused(durations.parse_instant, text)
        return
    assert text.isascii()
    assert milliseconds == durations.parse_instant(durations.canonical_instant(milliseconds))
    head, _, tail = text.partition(".")
    digits = "".join(_leading_digits(tail))
    try:
        moment = datetime.fromisoformat(head + tail[len(digits) :])
    except OverflowError:
        return
    exact = _seconds(moment) * 1_000 + Fraction(int(digits or "0") * 1_000, 10 ** len(digits))
    assert milliseconds == -(-exact.numerator // exact.denominator)


def hints(content: bytes) -> None:
    """Check that the controller can read the annotation of a held pod, which can be any text."""
    text = content.decode(errors="replace")
    keys = ("delay", "x")
    for annotations in (
        {HELD_ANNOTATION: text},
        {HELD_ANNOTATION: text, "delay": "soon"},
        {"delay": text},
    ):
        due = decide_due(annotations, created_ms=CREATED_MS, jitter_key=UID, delay_keys=keys)
        assert due.at_ms >= CREATED_MS, "due before its creation"
        assert due.problem.isprintable(), ascii(due.problem)
    try:
        hold_request = read_hint(text)
    except InvalidValueError:
        _refused(read_hint, text)
        return
    canonical = format_hint(hold_request)
    if canonical and max(hold_request.delay_ms, hold_request.jitter_ms) <= LONGEST:
        assert format_hint(read_hint(canonical)) == canonical


def windows(content: bytes) -> None:
    """Check when time windows open and close next."""
    text = content.decode(errors="replace")
    try:
        schedule = calendar.parse(text)
    except InvalidValueError:
        _refused(calendar.parse, text)
        return
    for at_ms in (0, CREATED_MS, DST_MS):
        opens_ms = schedule.next_open_ms(at_ms)
        if opens_ms is None:
            assert not schedule.is_open(at_ms)
            continue
        assert opens_ms == at_ms or not schedule.is_open(at_ms)
        assert opens_ms >= at_ms, "opens in the past"
        assert schedule.is_open(opens_ms)
        closes_ms = schedule.closes_ms(opens_ms)
        assert closes_ms is None or closes_ms > opens_ms
        assert closes_ms is None or not schedule.is_open(closes_ms)


def paces(content: bytes) -> None:
    """Check that the limits of a pace are within bounds, and that their text parses to the same."""
    text = content.decode(errors="replace")
    try:
        limits = pace.parse(text)
    except InvalidValueError:
        _refused(pace.parse, text)
        return
    counts = [count for count in (limits.starting, limits.releases) if count is not None]
    assert counts
    assert all(1 <= count <= pace.MAX_COUNT for count in counts)
    assert (limits.releases is None) == (limits.period_ms == 0)
    assert 0 <= limits.period_ms <= pace.MAX_PERIOD_MS
    assert pace.parse(str(limits)) == limits


def waits(content: bytes) -> None:
    """Check that objects to wait for are limited in number, validly named, and round-trip."""
    text = content.decode(errors="replace")
    try:
        wait_targets = targets.parse(text, WAITED)
    except InvalidValueError:
        _refused(lambda value: targets.parse(value, WAITED), text)
        return
    assert 0 < len(wait_targets) <= targets.MAX_OBJECTS
    for target in wait_targets:
        assert syntax.is_object_name(target.name), "a path could be built of it"
    assert targets.parse(", ".join(map(str, wait_targets)), WAITED) == wait_targets


def freezes(content: bytes) -> None:
    """Check that a freeze has a printable reason, and never ends if its end is invalid."""
    reason, _, until = content.decode(errors="replace").partition("\n")
    annotations = {FREEZE: reason, FREEZE_UNTIL: until}
    freeze = read_freeze(ApiObject(Metadata(name="shop", annotations=annotations)))
    assert freeze is not None
    assert str(freeze).isprintable(), ascii(str(freeze))
    assert len(str(freeze)) <= MESSAGE_LIMIT
    assert bool(freeze.problem) <= (freeze.until_ms == NEVER_MS)


def objects(content: bytes) -> None:
    """Check that an object is read despite a field that is nested too deeply for the decoder."""
    start, end = b'{"metadata":{"name":"p","x":' + b'{"a":' * 1_000, b"}" * 1_000 + b"}}"
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            safe_json.decode(safe_json.ANY, content)
            safe_json.decode(safe_json.ANY, start + content + end)
        return
    document = safe_json.decode(safe_json.ANY, start + content + end)
    assert document["metadata"]["name"] == "p"


TARGETS: dict[str, Target] = {
    "reviews": reviews,
    "configuration": configuration,
    "kubeconfig": kubeconfig,
    "requests": requests,
    "delays": delays,
    "instants": instants,
    "hints": hints,
    "windows": windows,
    "paces": paces,
    "waits": waits,
    "freezes": freezes,
    "objects": objects,
}
KNOWN = plugins.registry([])


@contextmanager
def no_deeds() -> Iterator[None]:
    """Prevent the block from starting programs or connecting: attempts raise PermissionError."""
    global _apart  # noqa: PLW0603 - an audit hook is process-wide and permanent
    _watch()
    _apart = True
    logging.disable()  # the client logs parse errors in addition to raising them
    try:
        yield
    finally:
        _apart = False
        logging.disable(logging.NOTSET)


@cache
def _watch() -> None:
    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if _apart and event in FORBIDDEN:
            raise PermissionError(f"{event} is forbidden here")

    sys.addaudithook(hook)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _is_whole(review: Any) -> bool:
    """Return whether a patch can apply: the API server always sends `metadata` and `spec`."""
    try:
        return all(
            isinstance(review["request"]["object"][field], dict) for field in ("metadata", "spec")
        )
    except (TypeError, KeyError):
        return False


def _profiles(content: bytes) -> Profiles:
    return pipelines.build_profiles(config.parse(content, "h.yaml"), KNOWN, source="h.yaml")


def _refused(parse: Callable[[str], object], text: str) -> None:
    """Check that a value is rejected with a short, printable message."""
    try:
        parse(text)
    except InvalidValueError as exc:
        message = str(exc)
        assert message.isprintable(), ascii(message)
        assert len(message) <= VALUE_MESSAGE_LIMIT, message
    else:
        raise AssertionError(f"{text!a} is accepted")


def _leading_digits(text: str) -> Iterator[str]:
    return itertools.takewhile("0123456789".__contains__, text)


def _seconds(moment: datetime) -> Fraction:
    offset = moment.utcoffset()
    assert offset is not None, "a time without an offset is accepted"
    days = moment.toordinal() - EPOCH_DAY
    return Fraction(
        days * 86_400 + moment.hour * 3_600 + moment.minute * 60 + moment.second
    ) - Fraction(offset // timedelta(seconds=1))
