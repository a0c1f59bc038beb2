from __future__ import annotations

import json
from typing import Any

from tests.fakes import Document, FakeApi
from tests.unit.builders import make_pod
from webhook import sweep
from webhook.vms import STICKY


class Pages(FakeApi):
    """Answers with one page after the other."""

    def __init__(self, *pages: list[Document] | None) -> None:
        super().__init__()
        self.pages = list(pages)

    def request(self, method: str, path: str, **fields: Any) -> bytes:
        self.requests.append((method, path))
        self.queries.append(dict(fields["query"]))
        number = len(self.requests)
        metadata = {"continue": str(number)} if number < len(self.pages) else {}
        return json.dumps({"metadata": metadata, "items": self.pages[number - 1]}).encode()


def test_kept_pods_are_found_on_every_page() -> None:
    api = Pages(
        [make_pod(name="a", finalizers=["example.com/x"]), make_pod(name="b", finalizers=[STICKY])],
        [make_pod(name="c", finalizers=[STICKY])],
        None,
    )

    assert [pod.metadata.name for pod in sweep.kept_pods(api)] == ["b", "c"]
    assert [query.get("continue") for query in api.queries] == [None, "1", "2"]
    assert {query["labelSelector"] for query in api.queries} == {"kubevirt.io!=virt-launcher"}
    assert {query["fieldSelector"] for query in api.queries} == {"status.phase!=Running"}
