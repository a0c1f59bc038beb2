"""Every error of Holdfast's own.

HoldfastError
├── ConfigurationError   the configuration file says something that cannot be
├── ReviewError          a request's body is no usable AdmissionReview (HTTP 400)
├── PluginFailedError    a plugin raised (HTTP 500, so that failurePolicy decides)
├── HandleError          a plugin asked for what its process does not have
├── ValueRefusedError    what a user wrote in an annotation cannot be followed
├── ClusterError         the API server could not be asked, or refused
│   ├── ApiStatusError     it answered with an error status
│   └── UnreachableError   it did not answer at all
├── StartError           a command cannot start: a file, a port, a kubeconfig
└── CommandError         a command cannot do what it was asked

Each text is one line and says what is wrong, where, and the cure.
"""

from __future__ import annotations

_NOT_FOUND = 404


class HoldfastError(Exception):
    """Base of all: catch this to catch whatever Holdfast itself raises."""


class ConfigurationError(HoldfastError):
    """The configuration cannot be followed; the text names the path in it and the cure."""


class ReviewError(HoldfastError):
    """A body is no AdmissionReview that can be answered."""


class PluginFailedError(HoldfastError):
    """A plugin raised or answered nonsense; the text names it."""


class UndecidedError(PluginFailedError):
    """A plugin could not look up what it decides by: that is no fault of its own."""


class HandleError(HoldfastError):
    """A plugin asked its handle for something that this process does not have."""


class ValueRefusedError(HoldfastError):
    """A user's value cannot be followed; the text shows it shortened and escaped."""


class ClusterError(HoldfastError):
    """The API server could not be asked, or did not do what it was asked."""


class ApiStatusError(ClusterError):
    """The API server answered with an error.

    `status` is the HTTP status, `reason` Kubernetes' own word for it (`NotFound`), `retry_after`
    the seconds that the server asks a client to wait, or None.
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
        """Whether Kubernetes itself says that there is no such object.

        Any other 404 says that there are no objects of this kind at all, or came from somebody in
        between: nothing is known to be gone by it.
        """
        return self.status == _NOT_FOUND and self.reason == "NotFound"


class UnreachableError(ClusterError):
    """No answer came from the API server: refused, timed out, or cut off."""


class StartError(HoldfastError):
    """A command cannot start; the text names the file, port or setting and the cure."""


class CommandError(HoldfastError):
    """A command cannot do what it was asked; the text names what, the reason and the cure."""
