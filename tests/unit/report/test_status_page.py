"""The status page: well-formed, escaped, accessible, and of a bounded size."""

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest

from holdfast.webhook.kube.events import Released
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.report import status_page
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.report.status_page import Fact, HeldPodRow, Selection, Status
from holdfast.webhook.report.sticky_vms import StickyVm
from tests.support.builders import CREATED_MS, MINUTE, SECOND

VOID = frozenset({"meta"})


class Page(HTMLParser):
    """Parses a page, and fails if its tags do not match."""

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

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.seen if name == tag)

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def page(
    held: Sequence[HeldPodRow] = (),
    released: Sequence[Released] = (),
    facts: Sequence[Fact] = (),
    machines: Sequence[StickyVm] | None = None,
    **others: Any,
) -> Page:
    status = Status("https://x", CREATED_MS, facts, held, released, machines, **others)
    return Page(status_page.page(status))


WAITS = HeldPodRow(("shop", "web-0"), CREATED_MS + 90 * SECOND)
LATE = HeldPodRow(("shop", "web-1"), CREATED_MS - 5 * SECOND, "delay", "annotation delay: …")


def test_held_pods_are_sorted_by_due_time() -> None:
    html = page([WAITS, LATE, HeldPodRow(("a", "b"), NEVER_MS)])
    assert "3 held pods" in html.text
    assert html.text.index("shop/web-1") < html.text.index("shop/web-0") < html.text.index("a/b")
    assert "1m30s" in html.text
    assert "overdue 5s" in html.text
    assert "not known" in html.text
    assert sum(attributes.get("class") == "bad" for attributes in html.attributes_of("th")) == 1


def test_user_supplied_text_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    machine = StickyVm(evil, evil, evil, loose="", runs_on=evil, remark=evil)
    html = page(
        [HeldPodRow((evil, evil), 0, evil, evil, evil)],
        [Released(("n", evil), 0, evil)],
        [Fact(evil, evil, Level.PROBLEM)],
        [machine],
        paces={evil: (1, 2)},
        windows={evil: evil},
        selection=Selection(evil, evil),
    )
    assert html.count("script") == 0
    assert html.text.count(evil) >= 15


def test_charts_of_next_hour_and_day_are_labelled() -> None:
    rows = [HeldPodRow(("a", str(minute)), CREATED_MS + minute * MINUTE) for minute in range(59)]
    html = page([*rows, HeldPodRow(("a", "later"), CREATED_MS + 61 * MINUTE)])
    hour, day = (
        attributes for attributes in html.attributes_of("div") if attributes.get("role") == "img"
    )
    assert hour["aria-label"] == "Next hour: 59 of 60 held pods due"
    assert day["aria-label"] == "Next day: 60 of 60 held pods due"
    heights = [attributes["style"] for attributes in html.attributes_of("i")]
    assert heights[:60] == ["height:100%"] * 59 + ["height:0%"]
    assert heights[60:] == ["height:100%", "height:4%", *["height:0%"] * 22]
    assert "Each bar is one minute; the highest is 1 pod." in html.text
    assert "the highest is 59 pods" in html.text


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([Level.OK], ("health ok", "Healthy")),
        ([Level.OK, Level.WARNING], ("health warning", "Needs attention\nf1: v")),
        ([Level.WARNING, Level.PROBLEM], ("health problem", "Not healthy\nf0: v; f1: v")),
    ],
)
def test_health_is_the_first_section(levels: Sequence[Level], expected: tuple[str, str]) -> None:
    html = page(facts=[Fact(f"f{number}", "v", level) for number, level in enumerate(levels)])
    kind, text = expected
    section = html.attributes_of("section")[0]
    assert section["class"] == kind
    assert text in html.text.split("Next hour")[0]


GROUPED = [
    HeldPodRow(("shop", "web-0"), CREATED_MS + MINUTE, owner="ReplicaSet/web"),
    HeldPodRow(("shop", "web-1"), CREATED_MS + 2 * MINUTE, owner="ReplicaSet/web"),
    HeldPodRow(("shop", "alone"), CREATED_MS + MINUTE),
]


def links(html: Page) -> list[str | None]:
    return [attributes["href"] for attributes in html.attributes_of("a")]


def test_pods_are_grouped_by_namespace_and_by_owner() -> None:
    assert "/?namespace=shop" in links(page(GROUPED))
    html = page(GROUPED, selection=Selection("shop"))
    assert "/?namespace=shop&owner=ReplicaSet%2Fweb" in links(html)
    assert "3 held pods" in html.text
    html = page(GROUPED, selection=Selection("shop", "ReplicaSet/web"))
    assert "2 held pods of ReplicaSet/web" in html.text
    assert "shop/alone" not in html.text


def test_page_refreshes_unless_paused() -> None:
    assert {"http-equiv": "refresh", "content": "10"} in page().attributes_of("meta")
    html = page(selection=Selection("shop", is_paused=True))
    assert not any("http-equiv" in attributes for attributes in html.attributes_of("meta"))
    assert "/?namespace=shop&paused=1" in links(page(selection=Selection("shop")))
    assert "/?namespace=shop" in links(html)


def test_paces_and_windows_are_shown_if_present() -> None:
    html = page(paces={"jvm": (4, 12)}, windows={"night": "open until 06:00"})
    for text in ("Paces", "jvm", "Windows", "night", "open until 06:00"):
        assert text in html.text
    assert "Paces" not in page().text


def test_counts_of_one_are_singular() -> None:
    status = Status("https://x", CREATED_MS, (), [WAITS], [Released(("a", "b"), CREATED_MS, "")])
    html = status_page.page(status).decode()
    assert "<title>Holdfast: 1 held pod</title>" in html
    assert "<h2>1 held pod</h2>" in html
    assert "<h2>Last 1 release</h2>" in html


def test_releases_are_sorted_newest_first() -> None:
    old = Released(("a", "old"), CREATED_MS - MINUTE, "released 0.010 s after its time")
    new = Released(("a", "new"), CREATED_MS - SECOND, "released 0.020 s after its time")
    html = page(released=[old, new])
    assert html.text.index("a/new") < html.text.index("a/old")
    assert "1m ago" in html.text


MACHINES = [
    StickyVm("shop", "db", "node-2", loose="", runs_on="node-1", remark="set by hand"),
    StickyVm("shop", "cache", "", loose="it says so", runs_on=""),
]


def test_sticky_vms_are_shown_if_present() -> None:
    html = page(machines=MACHINES)
    assert "2 VMs" in html.text
    for text in ("shop/db", "node-2", "node-1", "set by hand", "not running", "not sticky"):
        assert text in html.text
    assert "VMs" not in page().text
    assert "First 500 VMs" in page(machines=MACHINES * 251).text


def test_page_is_accessible() -> None:
    html = page([WAITS])
    assert html.attributes_of("html") == [{"lang": "en"}]
    assert html.count("h1") == html.count("main") == 1
    assert html.count("caption") == html.count("table")
    assert all(attributes.get("scope") for attributes in html.attributes_of("th"))


def test_page_has_no_scripts_or_external_resources() -> None:
    source = status_page.page(Status("https://x", CREATED_MS, [], [WAITS], [])).decode()
    for word in ("<script", 'href="http', "src=", "url("):
        assert word not in source


def test_page_size_is_bounded() -> None:
    rows = [HeldPodRow(("a", str(number)), CREATED_MS + number) for number in range(2_000)]
    html = page(rows)
    assert "2000 held pods (first 500)" in html.text
    assert html.count("tr") == 500 + 4
