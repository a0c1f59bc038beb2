"""The one way to the API server: the `kubernetes` client's configuration, and raw JSON.

The kubeconfig, the ServiceAccount, certificates, tokens and their renewal are the client's; bodies
go out and come back as bytes, because building its models costs more than all else we do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from kubernetes.config.kube_config import KubeConfigLoader

from webhook import values
from webhook.answers import Answer, Failure, Headers, read_date, status_error
from webhook.errors import ApiStatusError, StartError, UnreachableError
from webhook.kubeconfig import Kubeconfig
from webhook.wire import Wire

CONNECT_TIMEOUT = 5.0
"""Seconds to reach the API server."""
READ_TIMEOUT = 30.0
"""Seconds between two bytes of an answer; a release must not hang behind one lost packet."""
POOL_SIZE = 64
"""Connections kept: more than there are threads that ask."""

TOKEN_SECONDS = 1.0
"""For how long a token is used before the client is asked for it again: it then writes its whole
configuration anew, and looks through all of the environment for a proxy, of which a pod may have
hundreds of lines. It takes as long as sending the request."""

NO_SUCCESS = 300
"""The first HTTP status that is none: an API server sends nobody elsewhere, and nobody goes."""

PATIENT_TIMEOUT = 35.0
"""Seconds for a write that failed before. Somebody else's webhook may hang for up to 30 s and be
passed over then (`failurePolicy: Ignore`); the API server gives up a request of ours before that
only where we do, and itself after 34 s."""
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
JSON = "application/json"
_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""How to ask for no more than metadata: nobody reads what a JSON Patch made of an object."""

Query = Mapping[str, str | int]

_FAILURES = (*Failure, urllib3.exceptions.HTTPError)
_UNREADABLE = (OSError, kubernetes_config.ConfigException)
"""What the client raises where it cannot read a token."""
_UNAUTHORIZED = 401
_DEFAULT_KUBECONFIG = "~/.kube/config"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Timing:
    """When a request went out and its answer's head came in, and the answer's `Date`.

    `sent` and `received` are seconds by `now`, `date` seconds since 1970.
    """

    sent: float
    received: float
    date: float


class Api(Protocol):
    """What the controller needs of a cluster; a test may bring its own."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> bytes:
        """Send one request and return the answer's body.

        Raises ApiStatusError on any status but success, UnreachableError when no answer came.
        `timeout`, in seconds, bounds the way to the answer's first byte, then each silence.
        """
        ...

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        """Stream an answer line by line, as a watch is; `timeout` bounds each silence."""
        ...


def boot_time() -> float:
    """Seconds by a clock that neither steps nor stops while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Cluster:
    """A connection to one API server. Safe to share between threads."""

    def __init__(
        self,
        client: kubernetes_client.ApiClient,
        *,
        now: Callable[[], float] = boot_time,
        on_answer: Callable[[Timing], None] | None = None,
        namespace: str = "default",
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self.namespace = namespace
        """The namespace that is meant where none is named: the context's, or the pod's own."""
        self._client = client
        self._manager: urllib3.PoolManager = client.rest_client.pool_manager
        self._server: str = client.configuration.host.rstrip("/")
        # A proxy may want whole URLs, and has the manager see to it.
        self._base = self._server if self._manager.proxy else urlsplit(self._server).path
        self._pool = self._found_pool()
        self._wire = None if self._manager.proxy else _wire(client.configuration, now)
        self._now = now
        self._on_answer = on_answer
        self._renew = renew
        self._token: tuple[float, Mapping[str, str]] = float("-inf"), {}
        """When the client was last asked for the token, and the headers that it gave."""

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._server

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | None = None,
        context: str | None = None,
        *,
        on_answer: Callable[[Timing], None] | None = None,
    ) -> Cluster:
        """Connect as kubectl would, or as the pod's ServiceAccount. Raises StartError."""
        configuration = kubernetes_client.Configuration()
        try:
            namespace, renew = _load(configuration, kubeconfig, context)
            configuration.retries = False  # a PATCH is retried by who knows what it means
            configuration.connection_pool_maxsize = POOL_SIZE
            client = kubernetes_client.ApiClient(configuration)
            return cls(client, on_answer=on_answer, namespace=namespace or "default", renew=renew)
        except Exception as exc:  # noqa: BLE001 - on a broken file the client raises what comes
            named = f" {kubeconfig}" if kubeconfig else ""
            raise StartError(
                f"no usable kubeconfig{named} ({_problem(exc)}); name one with --kubeconfig or "
                "KUBECONFIG, or run in a pod with a ServiceAccount"
            ) from None

    def close(self) -> None:
        """Close all idle connections."""
        self._manager.clear()
        self._pool = self._found_pool()
        if self._wire is not None:
            self._wire.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> bytes:
        """Send one request and return the answer's body; see `Api.request`."""
        headers = self._headers(body, content_type)
        exchange = self._by_manager if self._wire is None else self._wire.exchange
        sent = self._now()
        try:
            answer = exchange(
                method, self._url(path, query), headers=headers, body=body, timeout=timeout
            )
        except _FAILURES as exc:
            raise self._unreachable(exc) from exc
        self._note(sent, answer.received, answer.headers)
        if answer.status >= NO_SUCCESS:
            raise self._refused(answer)
        return answer.data

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        """Stream an answer line by line; see `Api.lines`."""
        headers = self._headers(None, JSON)
        sent = self._now()
        try:
            response = self._opened("GET", self._url(path, query), headers, None, timeout)
        except _FAILURES as exc:
            raise self._unreachable(exc) from exc
        received = self._now()
        self._note(sent, received, response.headers)
        try:
            if response.status >= NO_SUCCESS:
                raise self._refused(_whole(response, received))
            rest = b""
            for chunk in response.stream(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise UnreachableError(f"{self._server}: the watch broke off: {exc}") from exc
        finally:
            # a stream that is left early cannot be used again
            response.close()
            response.release_conn()

    def _found_pool(self) -> urllib3.PoolManager | urllib3.HTTPConnectionPool:
        """Find the server's pool once: for each request anew costs a fifth of the request."""
        return (
            self._manager
            if self._manager.proxy
            else self._manager.connection_from_url(self._server)
        )

    def _by_manager(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> Answer:
        """Do as `Wire.exchange` does, by way of a proxy."""
        response = self._opened(method, target, headers, body, timeout)
        received = self._now()
        try:
            return _whole(response, received)
        except BaseException:
            response.close()
            raise
        finally:
            response.release_conn()

    def _opened(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and wait for the answer's head."""
        return self._pool.urlopen(
            method,
            target,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout),
            preload_content=False,
            redirect=False,
        )

    def _headers(self, body: bytes | None, content_type: str) -> Mapping[str, str]:
        accept = _METADATA if content_type == JSON_PATCH else JSON
        headers = {"Accept": accept, "User-Agent": "holdfast"}
        if body is not None:
            headers["Content-Type"] = content_type
        return {**headers, **self._authorization()}

    def _authorization(self) -> Mapping[str, str]:
        """Give the headers that say who asks. Raises UnreachableError where there is no token."""
        asked, known = self._token
        now = self._now()
        if now - asked < TOKEN_SECONDS:
            return known
        headers: dict[str, str] = {}
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        except _UNREADABLE as exc:
            reason = f"no token: {values.one_line(exc)}"
            raise UnreachableError(f"{self._server} cannot be asked: {reason}") from exc
        self._token = now, headers
        return headers

    def _refused(self, answer: Answer) -> ApiStatusError:
        """Say what an answer of no success says; where it wants another token, read it anew.

        The client reads it once a minute by the wall clock: not for long, where that was set back.
        """
        if answer.status == _UNAUTHORIZED:
            with suppress(*_UNREADABLE):
                self._renew()
            self._token = float("-inf"), {}
        return status_error(answer)

    def _url(self, path: str, query: Query | None) -> str:
        return f"{self._base}{path}" + (f"?{urlencode(query)}" if query else "")

    def _unreachable(self, exc: Exception) -> UnreachableError:
        reason = values.one_line(exc) or type(exc).__name__
        return UnreachableError(f"{self._server} does not answer: {reason}")

    def _note(self, sent: float, received: float, headers: Headers) -> None:
        """Tell of an answer's time whoever keeps the API server's clock."""
        if self._on_answer is not None and (date := read_date(headers)) is not None:
            self._on_answer(Timing(sent, received, date))


def _wire(configuration: kubernetes_client.Configuration, now: Callable[[], float]) -> Wire:
    return Wire(configuration, now=now, size=POOL_SIZE, connect_timeout=CONNECT_TIMEOUT)


def _whole(response: urllib3.BaseHTTPResponse, received: float) -> Answer:
    data = response.read()
    return Answer(response.status, response.reason or "", response.headers, data, received)


def pod_path(namespace: str, name: str) -> str:
    """Make the path of one pod."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _load(
    configuration: kubernetes_client.Configuration, kubeconfig: Path | None, context: str | None
) -> tuple[str, Callable[[], None]]:
    """Fill in a configuration; return the namespace that goes with it, and what renews its token.

    The namespace is empty for none.
    """
    if kubeconfig is None and context is None:

        def renew() -> None:
            kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )

        try:
            renew()
        except kubernetes_config.ConfigException:
            pass
        else:
            return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "", renew
    found = Kubeconfig(one.expanduser() for one in ([kubeconfig] if kubeconfig else _default()))
    loader = KubeConfigLoader(  # type: ignore[no-untyped-call]
        config_dict=found.merged(), active_context=context, config_persister=found.save
    )
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    return str(loader.current_context["context"].get("namespace") or ""), lambda: None


def _default() -> list[Path]:
    names = os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
    return [Path(name) for name in names.split(os.pathsep) if name]


def _problem(exc: Exception) -> str:
    """Say what is wrong with a kubeconfig; of what the client did not expect, how it failed."""
    told = values.one_line(exc)  # it may quote the file
    known = isinstance(exc, (kubernetes_config.ConfigException, StartError))
    return told if known else f"{type(exc).__name__}: {told}"
