"""Health and metrics over plain HTTP: nothing there is secret or writable."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from webhook.pages import TEXT, Page, PageServer


class HealthServer(PageServer):
    """Serves /healthz, /readyz and /metrics; where there are conditions, /conditions."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], bool],
        exposition: Callable[[], bytes],
        conditions: str = "",
    ) -> None:
        pages: dict[str, Page] = {
            "/healthz": lambda: (200, TEXT, b"ok\n"),
            "/readyz": lambda: (200, TEXT, b"ok\n") if ready() else (503, TEXT, b"not ready\n"),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, exposition()),
        }
        if conditions:
            pages["/conditions"] = lambda: (200, TEXT, f"{conditions}\n".encode())
        super().__init__(host, port, pages, option="--health-port")
