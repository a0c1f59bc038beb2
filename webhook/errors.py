"""All errors raised by Holdfast.

Each message is one line: what is wrong, where, and what to do.
"""


class HoldfastError(Exception):
    """Base class of all errors raised by Holdfast."""


class ConfigurationError(HoldfastError):
    """The configuration is invalid; the message has the path in it and what to do."""


class ReviewError(HoldfastError):
    """A request's body is not a valid AdmissionReview."""


class PluginFailedError(HoldfastError):
    """A plugin raised or answered nonsense; the text names it."""


class UndecidedError(PluginFailedError):
    """A lookup that a plugin needs failed, which is not the plugin's fault."""


class HandleError(HoldfastError):
    """A plugin used something of its handle that this process does not have."""


class InvalidValueError(HoldfastError):
    """A user's value cannot be followed; the text shows it shortened and escaped."""


class ClusterError(HoldfastError):
    """A request to the API server failed."""


class ApiStatusError(ClusterError):
    """The API server returned an error status.

    `status` is the HTTP status, `reason` Kubernetes' name for it (`NotFound`), `retry_after` the
    seconds of the Retry-After header, or None.
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
        """Whether the API server says that the object does not exist.

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
    """This process has looked up too much; it may go on in a minute."""


class ResponseTooLargeError(ClusterError):
    """The API server's response is larger than this process reads."""


class NoCredentialsError(UnreachableError):
    """This process has no credentials for the API server."""


class CredentialsError(UnreachableError):
    """The API server was not asked, because this machine's credentials cannot be used."""


class StartError(HoldfastError):
    """A command cannot start; the message has the file, port or setting and what to do."""


class KubeconfigError(StartError):
    """A kubeconfig names something that cannot be used; the message says what to do about it."""


class CommandError(HoldfastError):
    """A command failed; the message has the object, the reason and what to do."""


def described(exc: BaseException) -> str:
    """Name an exception and what it says."""
    return f"{type(exc).__name__}: {exc}"
