"""The status page of a running controller, in a real Chromium.

`HOLDFAST_PICTURES=docs/images make test-debian` updates the screenshots in the docs.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.launcher import ControlPlane
from controlplane.ports import free_ports
from demo.command import Command
from tests.debian.chromium import Tab, chromium
from tests.e2e.cli.commands import CRDS
from tests.e2e.namespace import Namespace, gates, pod

PICTURES = Path(os.environ.get("HOLDFAST_PICTURES", "build/pictures"))
MINUTES = (5, 9, 9, 10, 10, 10, 22, 22, 35, 48, 48, 56)
"""Minutes until each of the shown pods is released."""
WIDTHS = (320, 768, 1_100)
"""Pixels: phone, tablet and desktop."""
MAX_BYTES = 200_000
"""Maximum size of a screenshot in the docs."""
MIN_CONTRAST = 4.5
"""The minimum contrast between text and its background (WCAG 2.1, level AA)."""
LANDMARKS = {"banner", "main"}

CONTRASTS = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
  };
  const found = [];
  for (const node of document.body.querySelectorAll('*')) {
    if (![...node.childNodes].some(one => one.nodeType === 3 && one.textContent.trim())) continue;
    if (node.closest('svg')) continue;
    const a = light(parse(getComputedStyle(node).color)), b = light(behind(node));
    found.push([node.tagName + ' ' + node.textContent.trim().slice(0, 40),
                (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the status page of a controller with held pods, releases, an overdue pod, and VMs."""
    folder = tmp_path_factory.mktemp("status")
    (port,) = free_ports(1)
    with ControlPlane(nodes=3) as plane:
        ns = Namespace.create_new(plane, "shop")
        ns.apply(*CRDS)
        ns.definitions_established()
        record = {"holdfast.dev/sticky-node": "node-2"}
        for name, annotations in (("db", record), ("cache", {"holdfast.dev/sticky": "false"})):
            metadata = {"name": name, "annotations": annotations}
            kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}
            ns.create({**kind, "metadata": metadata})
        gated = [{"name": "holdfast.dev/delay"}]
        for number, minutes in enumerate(MINUTES):
            delay = f"{minutes}m{7 * number % 30}s"
            ns.apply(pod(f"web-{number}", {"delay": delay}, schedulingGates=gated))
        options = ("--health-port", "0", "--status-port", str(port))
        log = folder / "controller.log"
        with Command("controller", "--kubeconfig", str(plane.kubeconfig), *options, log=log):
            for name in ("batch-0", "batch-1"):
                ns.apply(pod(name, {"delay": "2"}, schedulingGates=gated))
            ns.eventually(
                lambda: len([manifest for manifest in ns.all("pods") if gates(manifest)]) == 12
            )
            yield f"http://localhost:{port}/"


@pytest.fixture(scope="module")
def tab(url: str) -> Iterator[Tab]:
    with chromium() as new_tab:
        new_tab.call("Emulation.setScriptExecutionDisabled", value=True)
        new_tab.window(1100, 900)
        new_tab.open(url)
        yield new_tab


def named(nodes: list[dict[str, Any]], role: str) -> list[str]:
    return [node["name"]["value"] for node in nodes if node["role"]["value"] == role]


def test_page_shows_held_released_and_sticky(tab: Tab) -> None:
    text = tab.evaluate("document.body.innerText")
    for phrase in (
        *("12 held pods", "shop/web-11", "shop/batch-1", "2 VMs", "shop/db", "node-2"),
        *("This controller\nleader", " late on average", "Last 2 releases", "Healthy"),
        "Held pods by namespace",
    ):
        assert phrase in text


def test_page_loads_without_errors_or_external_requests(tab: Tab, url: str) -> None:
    requested_urls = [
        event["params"]["request"]["url"]
        for event in tab.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [address for address in requested_urls if not address.endswith("favicon.ico")] == [url]
    assert [event for event in tab.events if event["method"] == "Log.entryAdded"] == []
    assert [event for event in tab.events if event["method"] == "Runtime.consoleAPICalled"] == []


def test_page_is_accessible_to_screen_readers(tab: Tab) -> None:
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    nodes = [node for node in nodes if not node["ignored"]]
    assert {node["role"]["value"] for node in nodes} >= LANDMARKS
    headings = [
        (property_["value"]["value"], node["name"]["value"])
        for node in nodes
        if node["role"]["value"] == "heading"
        for property_ in node["properties"]
        if property_["name"] == "level"
    ]
    assert headings[0] == (1, "Holdfast")
    assert all(level == 2 for level, _ in headings[1:])
    assert len(headings) > 4
    assert all(name for _, name in headings)
    tables = named(nodes, "table")
    assert len(tables) == 4
    assert all(tables)
    assert "shop/web-11" in named(nodes, "rowheader")
    assert {"Pod", "Due", "Left", "Returns to"} <= set(named(nodes, "columnheader"))
    assert named(nodes, "image") == [
        "Next hour: 12 of 12 held pods due",
        "Next day: 12 of 12 held pods due",
    ]
    assert tab.evaluate("document.documentElement.lang") == "en"
    assert tab.evaluate("document.title") == "Holdfast: 12 held pods"


@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_text_contrast_is_sufficient(tab: Tab, dark: bool) -> None:
    tab.window(1100, 900, dark=dark)
    contrasts = tab.evaluate(CONTRASTS)
    assert len(contrasts) > 50
    assert [(text, round(ratio, 1)) for text, ratio in contrasts if ratio < MIN_CONTRAST] == []


def test_contrast_check_detects_pale_text(tab: Tab, url: str) -> None:
    tab.window(1100, 900)
    tab.evaluate("document.querySelector('h1').style.color = '#aaa'")
    assert dict(tab.evaluate(CONTRASTS))["H1 Holdfast"] < MIN_CONTRAST
    tab.open(url)


def test_links_open_a_namespace_and_pause_refreshing(tab: Tab, url: str) -> None:
    tab.open(tab.evaluate("document.querySelector('table a').href"))
    assert "Namespace shop, by owner" in tab.evaluate("document.body.innerText")
    tab.open(tab.evaluate("document.querySelector('header a').href"))
    assert "not refreshed" in tab.evaluate("document.body.innerText")
    tab.open(url)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", ["", "?namespace=shop"])
def test_page_does_not_scroll_horizontally(tab: Tab, url: str, width: int, path: str) -> None:
    tab.window(width, 900)
    tab.open(url + path)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.open(url)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_screenshots_are_taken(tab: Tab, url: str, width: int, dark: bool) -> None:
    tab.window(width, 1000)
    tab.open(f"{url}?paused=1")
    height = tab.evaluate("document.documentElement.scrollHeight")
    tab.window(width, height, dark=dark)
    picture = tab.picture()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (width, height)
    assert len(picture) < MAX_BYTES
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"status-page-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
