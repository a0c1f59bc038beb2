"""Holdfast: when pods start, and where they run. This package is the API for plugins.

Everything in `__all__` is stable; docs/how-to/write-a-plugin.md describes it. The subpackages
`holdfast.webhook` and `holdfast.certs` are internal, and may change in any release.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.webhook.errors import ConfigurationError
    from holdfast.webhook.framework import arg_types, cel
    from holdfast.webhook.framework.handle import Handle
    from holdfast.webhook.framework.plugin import (
        Allow,
        Args,
        Code,
        Context,
        Permit,
        Plugin,
        Reject,
        Result,
        Wait,
        error,
        reject,
        skip,
        success,
    )
    from holdfast.webhook.model import edits
    from holdfast.webhook.model.messages import quote
    from holdfast.webhook.model.objects import Pod
    from holdfast.webhook.model.review import PodReview
    from holdfast.webhook.model.workloads import Workload

__all__ = [
    "Allow",
    "Args",
    "Code",
    "ConfigurationError",
    "Context",
    "Handle",
    "Permit",
    "Plugin",
    "Pod",
    "PodReview",
    "Reject",
    "Result",
    "Wait",
    "Workload",
    "arg_types",
    "cel",
    "edits",
    "error",
    "quote",
    "reject",
    "skip",
    "success",
]

_PLUGIN = "framework.plugin"
_MODULES = {
    "ConfigurationError": "errors",
    "Handle": "framework.handle",
    "Pod": "model.objects",
    "PodReview": "model.review",
    "Workload": "model.workloads",
    "quote": "model.messages",
    **dict.fromkeys(("Args", "Code", "Context", "Plugin", "Result"), _PLUGIN),
    **dict.fromkeys(("Allow", "Permit", "Reject", "Wait"), _PLUGIN),
    **dict.fromkeys(("error", "reject", "skip", "success"), _PLUGIN),
}
_SUBMODULES = {"arg_types": "framework", "cel": "framework", "edits": "model"}


def __getattr__(name: str) -> Any:
    # Imported on first use: every `holdfast` command imports this package, but few need plugins.
    if name in _SUBMODULES:
        return importlib.import_module(f"holdfast.webhook.{_SUBMODULES[name]}.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(f"holdfast.webhook.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
