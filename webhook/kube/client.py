"""Connection to the API server: the `kubernetes` client's configuration, with raw JSON bodies.

The `kubernetes` client handles the kubeconfig, the ServiceAccount, certificates and tokens. Bodies
are bytes, because building the client's models would cost more than everything else. The client is
imported on demand, because the import takes longer than most commands.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode, urlsplit

import urllib3

from holdfast.webhook.errors import (
    ApiStatusError,
    ClusterError,
    CredentialsError,
    KubeconfigError,
    ResponseTooLargeError,
    StartError,
    UnreachableError,
)
from holdfast.webhook.kube import unreachable
from holdfast.webhook.kube.api import (
    JSON,
    JSON_PATCH,
    READ_TIMEOUT,
    Observe,
    OnEnd,
    Query,
    boot_time,
)
from holdfast.webhook.kube.kubeconfig import Access, kubeconfigs, load_access
from holdfast.webhook.kube.response_loop import ResponseLoop
from holdfast.webhook.kube.transport import (
    LARGEST,
    TRANSPORT_ERRORS,
    Response,
    Transport,
    TransportError,
    read_date,
    read_warnings,
    require_size,
    status_error,
)
from holdfast.webhook.model import messages

if TYPE_CHECKING:
    from kubernetes import client as kubernetes_client

CONNECT_TIMEOUT = 5.0
"""Seconds to reach the API server."""
POOL_SIZE = 64
"""Maximum number of idle connections: more than the threads that send requests."""

TOKEN_SECONDS = 1.0
"""Seconds for which a token is cached. Getting it from the client takes as long as sending a
request, because the client scans the environment, which may have hundreds of variables in a pod."""

AT_ONCE_SECONDS = 0.0005
"""Maximum seconds to read a part of a watch that has already arrived."""
GROUP_SECONDS = 0.01
"""Pause, in seconds, after each part of a watch that had not arrived yet. In a burst, waking up for
each event takes twice the CPU of reading several at once."""

NO_SUCCESS = 300
"""The lowest HTTP status that is an error: an API server does not redirect."""

_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""Requests metadata only, because the response to a JSON Patch is not read."""

_TRANSPORT_ERRORS = (*TRANSPORT_ERRORS, urllib3.exceptions.HTTPError)
_UNAUTHORIZED = 401


class Cluster:
    """A connection to an API server. Safe to share between threads."""

    def __init__(
        self,
        client: kubernetes_client.ApiClient,
        access: Access,
        *,
        now: Callable[[], float] = boot_time,
        on_answer: Observe | None = None,
    ) -> None:
        self.namespace = access.namespace or "default"
        """The default namespace: the context's, or the pod's."""
        self._client = client
        self._manager: urllib3.PoolManager = client.rest_client.pool_manager
        self.server: str = client.configuration.host.rstrip("/")
        # the manager rewrites URLs for a proxy
        self._base = self.server if self._manager.proxy else urlsplit(self.server).path
        self._pool = self._server_pool()
        self._transport = None
        if not self._manager.proxy:
            self._transport = Transport(
                client.configuration, now=now, size=POOL_SIZE, connect_timeout=CONNECT_TIMEOUT
            )
            self._responses = ResponseLoop(self._transport, now=now)
        self._now = now
        self._on_answer = on_answer
        self._renew = access.renew
        self._has_expired = access.has_expired
        self.impersonation = access.impersonation
        """Headers that are sent with every request. A name may occur several times."""
        self.on_warning: Callable[[str], None] | None = None
        """Gets the warnings of all responses, for commands that print them."""
        self._token: tuple[float, Mapping[str, str]] = float("-inf"), {}
        """The time when the token was last read, and the resulting headers."""
        self._is_rejected = False
        """Whether the server has rejected the credentials since the last renewal."""

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | None = None,
        context: str | None = None,
        *,
        on_answer: Observe | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """Connect like kubectl, or as the pod's ServiceAccount. Raises StartError.

        `overrides` names a cluster or user to use instead of the context's.
        """
        from kubernetes import client as kubernetes_client  # noqa: PLC0415 - slow to import

        configuration = kubernetes_client.Configuration()
        try:
            access = load_access(configuration, kubeconfig, context, overrides or {})
            configuration.retries = False  # callers retry: only they know whether it is safe
            configuration.connection_pool_maxsize = POOL_SIZE
            client = kubernetes_client.ApiClient(configuration)
            return cls(client, access, on_answer=on_answer)
        except KubeconfigError:
            raise
        except OSError as exc:
            reason = exc.strerror or messages.one_line(exc)
            raise KubeconfigError(
                f"cannot write the kubeconfig's certificates to a temporary file ({reason}): set "
                "TMPDIR to a folder with free space"
            ) from None
        except Exception as exc:  # noqa: BLE001 - for a broken file the client may raise anything
            paths = ", ".join(map(str, kubeconfigs(kubeconfig)))
            problem = messages.one_line(exc)  # it may quote the file
            if not isinstance(exc, _unreadable()):
                problem = f"{type(exc).__name__}: {problem}"
            raise StartError(
                f"no usable kubeconfig {paths} ({problem}); give one with --kubeconfig or "
                "KUBECONFIG, or run in a pod with a ServiceAccount"
            ) from None

    def close(self) -> None:
        """Close all idle connections."""
        self._manager.clear()
        self._pool = self._server_pool()
        if self._transport is not None:
            self._transport.close()

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
        """Send a request and return the response's body; see `Api.request`."""
        headers = self._headers(body, content_type)
        send = self._send_through_proxy if self._transport is None else self._transport.send
        sent = self._now()
        try:
            response = send(
                method, self._url(path, query), headers=headers, body=body, timeout=timeout
            )
        except _TRANSPORT_ERRORS as exc:
            raise self._unreachable(exc) from exc
        self._report_timing(sent, response.received, response.headers)
        if self.on_warning is not None:
            for warning in read_warnings(response.headers):
                self.on_warning(warning)
        if response.status >= NO_SUCCESS:
            raise self._status_error(response)
        return response.data

    def begin(self, path: str, body: bytes, *, timeout: float, on_end: OnEnd) -> bool:
        """Send a JSON Patch without waiting; return False if `request` has to send it.

        Returns False if no idle connection is available, and after a 401, because renewing the
        credentials may block. `receive` calls `on_end` with None, or with the error that
        `request` would raise.
        """
        if self._transport is None or self._is_rejected:
            return False
        try:
            headers = self._headers(body, JSON_PATCH)
            request = self._transport.format("PATCH", self._url(path, None), headers, body)
        except (ClusterError, TransportError):
            return False  # `request` raises it again
        sent = self._now()

        def end(result: Response | Exception) -> None:
            if not isinstance(result, Response):
                on_end(self._unreachable(result))
                return
            self._report_timing(sent, result.received, result.headers)
            if result.status == _UNAUTHORIZED:
                self._is_rejected = True
            on_end(status_error(result) if result.status >= NO_SUCCESS else None)

        return self._responses.send(request, timeout=timeout, on_end=end)

    def receive(self, stop: threading.Event) -> None:
        """Receive the responses to patches sent by `begin` until `stop` is set."""
        if self._transport is not None:
            self._responses.run(stop)

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        """Yield the lines of a response; see `Api.lines`."""
        headers = self._headers(None, JSON)
        sent = self._now()
        try:
            response = self._open("GET", self._url(path, query), headers, None, timeout)
        except _TRANSPORT_ERRORS as exc:
            raise self._unreachable(exc) from exc
        received = self._now()
        self._report_timing(sent, received, response.headers)
        try:
            if response.status >= NO_SUCCESS:
                raise self._status_error(_read_response(response, received))
            parts: list[bytes] = []
            for chunk in _in_groups(response.stream(1 << 16)):
                end, *starts = chunk.split(b"\n")
                parts.append(end)
                for start in starts:
                    yield b"".join(parts)
                    parts = [start]
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise UnreachableError(
                f"{self.server}: the watch was interrupted: {unreachable.reason(exc)}"
            ) from exc
        finally:
            # an unfinished stream cannot be reused
            response.close()
            response.release_conn()

    def _server_pool(self) -> urllib3.PoolManager | urllib3.HTTPConnectionPool:
        """Return the connection pool; looking it up each time takes a fifth of a request."""
        return (
            self._manager if self._manager.proxy else self._manager.connection_from_url(self.server)
        )

    def _send_through_proxy(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> Response:
        """Send a request through a proxy; see `Transport.send`."""
        response = self._open(method, target, headers, body, timeout)
        received = self._now()
        try:
            return _read_response(response, received)
        except BaseException:
            response.close()
            raise
        finally:
            response.release_conn()

    def _open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> urllib3.BaseHTTPResponse:
        return self._pool.urlopen(
            method,
            target,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout),
            preload_content=False,
            # An API server does not redirect, and the token must not be sent elsewhere.
            redirect=False,
        )

    def _headers(self, body: bytes | None, content_type: str) -> Mapping[str, str]:
        accept = _METADATA if content_type == JSON_PATCH else JSON
        headers = {"Accept": accept, "User-Agent": "holdfast"}
        if body is not None:
            headers["Content-Type"] = content_type
        headers |= self._authorization()
        if not self.impersonation:
            return headers
        return urllib3.HTTPHeaderDict([*headers.items(), *self.impersonation])

    def _authorization(self) -> Mapping[str, str]:
        """Return the Authorization header. Raises CredentialsError if the token cannot be read."""
        if self._is_rejected:
            self._renew_rejected()
        read_at, cached_headers = self._token
        now = self._now()
        if now - read_at < TOKEN_SECONDS:
            return cached_headers
        headers: dict[str, str] = {}
        try:
            if self._has_expired() or self._lacks_files():
                self._renew_credentials()
            self._client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        except _unreadable() as exc:
            reason = f"no credentials: {messages.one_line(exc)}"
            raise CredentialsError(f"{self.server} cannot be asked: {reason}") from exc
        self._token = now, headers
        return headers

    def _status_error(self, response: Response) -> ApiStatusError:
        """Return the exception for an error response. After a 401, renew the credentials."""
        if response.status == _UNAUTHORIZED:
            self._renew_rejected()
        return status_error(response)

    def _renew_rejected(self) -> None:
        """Renew rejected credentials; if that fails, the server may reject the next request."""
        self._is_rejected = False
        with suppress(*_unreadable()):
            self._renew_credentials()
        self._token = float("-inf"), {}

    def _lacks_files(self) -> bool:
        """Return whether a file that the client wrote is missing, as after a cleanup of /tmp."""
        configuration = self._client.configuration
        files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        return any(file and not Path(file).exists() for file in files)

    def _renew_credentials(self) -> None:
        """Renew the credentials, and close idle connections, which keep the old certificate."""
        configuration = self._client.configuration
        files = configuration.cert_file, configuration.key_file
        self._renew()
        if files != (configuration.cert_file, configuration.key_file):
            self._manager.clear()
            self._manager = type(self._client.rest_client)(configuration).pool_manager
        if configuration.cert_file:
            self.close()

    def _url(self, path: str, query: Query | None) -> str:
        return f"{self._base}{path}" + (f"?{urlencode(query)}" if query else "")

    def _unreachable(self, exc: Exception) -> ClusterError:
        if isinstance(exc, ResponseTooLargeError):
            return exc
        return UnreachableError(f"{self.server} does not answer: {unreachable.reason(exc)}")

    def _report_timing(self, sent: float, received: float, headers: Mapping[str, str]) -> None:
        if self._on_answer is not None and (date := read_date(headers)) is not None:
            self._on_answer(sent=sent, received=received, date=date)


def _in_groups(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks, with a pause after each that did not arrive at once, to batch the next."""
    while True:
        began = time.monotonic()
        chunk = next(chunks, None)
        if chunk is None:
            return
        is_alone = time.monotonic() - began > AT_ONCE_SECONDS
        yield chunk
        if is_alone:
            time.sleep(GROUP_SECONDS)


def _read_response(response: urllib3.BaseHTTPResponse, received: float) -> Response:
    headers = {name.lower(): value for name, value in response.headers.itermerged()}
    data = response.read(LARGEST + 1)
    require_size(len(data))
    return Response(response.status, response.reason or "", headers, data, received)


def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors that the client raises if it cannot read a token."""
    from kubernetes.config import ConfigException  # noqa: PLC0415 - slow to import

    return OSError, ConfigException, StartError
