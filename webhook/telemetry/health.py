"""Health and metrics over plain HTTP: nothing there is secret or writable."""

from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.webhook.telemetry.pages import TEXT, Page, PageServer, create_app

_PLAIN = {"Content-Type": TEXT}


class HealthServer(PageServer):
    """Serves /healthz, /readyz and /metrics; also /conditions, where there are any."""

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
            "/healthz": lambda: (b"ok\n", 200, _PLAIN),
            "/readyz": lambda: (b"ok\n", 200, _PLAIN) if ready() else (b"not ready\n", 503, _PLAIN),
            "/metrics": lambda: (exposition(), 200, {"Content-Type": CONTENT_TYPE_LATEST}),
        }
        if conditions:
            pages["/conditions"] = lambda: (f"{conditions}\n".encode(), 200, _PLAIN)
        super().__init__(host, port, create_app(pages), option="--health-port")
