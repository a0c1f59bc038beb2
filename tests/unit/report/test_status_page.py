"""The status page: well-formed, escaped, accessible, and of a bounded size."""

from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from holdfast.webhook.controller.history import Released
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.report import status_page
from holdfast.webhook.report.status_page import HeldPodRow, Status
from holdfast.webhook.report.sticky_vms import StickyVm
from tests.support.builders import CREATED_MS, MINUTE, SECOND

VOID = frozenset({"meta"})


class Page(HTMLParser):
    """Reads a page, and fails where its tags do not match."""

    def __init__(self, source: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.seen if name == tag)

    def texts(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def page(
    held: Sequence[HeldPodRow] = (),
    released: Sequence[Released] = (),
    facts: Sequence[tuple[str, str, bool]] = (),
    machines: Sequence[StickyVm] | None = None,
) -> Page:
    status = Status("https://x", CREATED_MS, facts, held, released, machines)
    return Page(status_page.page(status))


WAITS = HeldPodRow(("shop", "web-0"), CREATED_MS + 90 * SECOND)
LATE = HeldPodRow(("shop", "web-1"), CREATED_MS - 5 * SECOND, "annotation delay: …")


def test_held_pods_are_shown_those_due_first() -> None:
    seen = page([WAITS, LATE, HeldPodRow(("a", "b"), NEVER_MS)])
    assert "3 held pods" in seen.text
    assert seen.text.index("shop/web-1") < seen.text.index("shop/web-0") < seen.text.index("a/b")
    assert "1m30s" in seen.text
    assert "overdue 5s" in seen.text
    assert "not known" in seen.text
    assert sum(attributes.get("class") == "bad" for attributes in seen.texts("th")) == 1


def test_what_pods_say_of_themselves_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    seen = page(
        [HeldPodRow(("n", evil), 0, evil)], [Released(("n", evil), 0, evil)], [(evil, evil, False)]
    )
    assert seen.count("script") == 0
    assert seen.text.count(evil) == 6


def test_an_hour_is_drawn_and_said_in_words() -> None:
    inside = [HeldPodRow(("a", str(n)), CREATED_MS + n * MINUTE) for n in range(59)]
    seen = page([*inside, HeldPodRow(("a", "later"), CREATED_MS + 61 * MINUTE)])
    (drawing,) = seen.texts("svg")
    assert drawing["aria-label"] == "59 of 60 held pods are due in the next hour"
    assert drawing["role"] == "img"
    assert seen.count("rect") == 59 + 1


def test_one_is_told_as_one() -> None:
    status = Status("https://x", CREATED_MS, (), [WAITS], [Released(("a", "b"), CREATED_MS, "")])
    written = status_page.page(status).decode()
    assert "<title>Holdfast: 1 held pod</title>" in written
    assert "<h2>1 held pod</h2>" in written
    assert "<h2>Last 1 release</h2>" in written


def test_releases_are_shown_the_newest_first() -> None:
    old = Released(("a", "old"), CREATED_MS - MINUTE, "released 0.010 s after its time")
    new = Released(("a", "new"), CREATED_MS - SECOND, "released 0.020 s after its time")
    seen = page(released=[old, new])
    assert seen.text.index("a/new") < seen.text.index("a/old")
    assert "1m ago" in seen.text


@pytest.mark.parametrize("well", [True, False])
def test_what_is_not_well_stands_out(well: bool) -> None:
    (fact,) = page(facts=[("leader", "yes", well)]).texts("dd")
    assert (fact.get("class") == "bad") is not well


MACHINES = [
    StickyVm("shop", "db", "node-2", loose="", runs_on="node-1", remark="set by hand"),
    StickyVm("shop", "cache", "", loose="it says so", runs_on=""),
]


def test_sticky_vms_are_shown_where_there_are_any() -> None:
    seen = page(machines=MACHINES)
    assert "2 VMs" in seen.text
    for wanted in ("shop/db", "node-2", "node-1", "set by hand", "not running", "not sticky"):
        assert wanted in seen.text
    assert "VMs" not in page().text
    assert "First 500 VMs" in page(machines=MACHINES * 251).text


def test_it_is_accessible() -> None:
    seen = page([WAITS])
    assert seen.texts("html") == [{"lang": "en"}]
    assert seen.count("h1") == seen.count("main") == 1
    assert seen.count("caption") == seen.count("table")
    assert all(attributes.get("scope") for attributes in seen.texts("th"))


def test_nothing_comes_from_elsewhere_and_nothing_runs() -> None:
    source = status_page.page(Status("https://x", CREATED_MS, [], [WAITS], [])).decode()
    for word in ("<script", "href=", "src=", "url(", 'http-equiv="refresh"'):
        assert word not in source


def test_its_size_is_bounded() -> None:
    many = [HeldPodRow(("a", str(n)), CREATED_MS + n) for n in range(2_000)]
    seen = page(many)
    assert "2000 held pods (first 500)" in seen.text
    assert seen.count("tr") == 500 + 2
