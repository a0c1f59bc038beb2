"""All errors raised by Holdfast.

Each message is one line: what is wrong, where, and what to do.
"""


class HoldfastError(Exception):
    """Base class of all errors raised by Holdfast."""


class ConfigurationError(HoldfastError):
    """The configuration is invalid; the message has the field's path and what to do."""


class ReviewError(HoldfastError):
    """A request's body is not a valid AdmissionReview."""


class PluginFailedError(HoldfastError):
    """A plugin raised or returned an invalid result; the message names the plugin."""


class UndecidedError(PluginFailedError):
    """A lookup that a plugin needs failed, which is not the plugin's fault."""


class HandleError(HoldfastError):
    """A plugin used a part of its handle that this process does not provide."""


class InvalidValueError(HoldfastError):
    """A user's value is invalid; the message shows it shortened and escaped."""


class ClusterError(HoldfastError):
    """A request to the API server failed."""


class ApiStatusError(ClusterError):
    """The API server returned an error status.

    `status` is the HTTP status, `reason` is Kubernetes' name for it (`NotFound`), and `retry_after`
    is the Retry-After header in seconds, or None.
    """

    def __init__(
        self, message: str, *, status: int, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def is_not_found(self) -> bool:
        """Whether the API server reports that the object does not exist.

        Any other 404 means that the kind is not served, or comes from a proxy.
        """
        return self.status == 404 and self.reason == "NotFound"

    @property
    def is_refused(self) -> bool:
        """Whether the user lacks a permission, or valid credentials."""
        return self.status in {401, 403}


class UnreachableError(ClusterError):
    """The API server did not respond: refused, timed out, or disconnected."""


class LookupLimitError(UnreachableError):
    """This process has exceeded its lookup limit; it may continue in a minute."""


class ResponseTooLargeError(ClusterError):
    """The API server's response is larger than this process reads."""


class NoCredentialsError(UnreachableError):
    """This process has no credentials for the API server."""


class CredentialsError(UnreachableError):
    """No request was sent to the API server: this machine's credentials cannot be used."""


class StartError(HoldfastError):
    """A command cannot start; the message has the file, port or setting and what to do."""


class KubeconfigError(StartError):
    """A kubeconfig refers to something unusable; the message has what to do."""


class CommandError(HoldfastError):
    """A command failed; the message has the object, the reason and what to do."""


def described(exc: BaseException) -> str:
    """Return an exception's type and message."""
    return f"{type(exc).__name__}: {exc}"
