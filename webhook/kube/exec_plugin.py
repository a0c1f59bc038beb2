"""Run a kubeconfig's credential plugin like kubectl, with its messages on the terminal.

The `kubernetes` client only logs failures, and hides the plugin's prompts if standard output is not
a terminal.
"""

import json
import os
import subprocess
import sys
from typing import Any

from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import FileOrData, KubeConfigLoader

from holdfast.webhook.errors import KubeconfigError
from holdfast.webhook.model import messages

_NEVER = "Never"


class PluginLoader(KubeConfigLoader):
    """The client's loader, except that it fails if the credential plugin fails."""

    _user: Any

    def _load_from_exec_plugin(self) -> bool | None:
        if "exec" not in self._user:
            return None
        settings = self._user["exec"]
        provider: Any = ExecProvider(settings, "", self._cluster)  # type: ignore[no-untyped-call]
        status = _run(settings, provider)
        if status.get("token"):
            self.token = f"Bearer {status['token']}"
        else:
            self.cert_file = self._file(status, "clientCertificateData")
            self.key_file = self._file(status, "clientKeyData")
        if not (status.get("token") or (self.cert_file and self.key_file)):
            raise _error(settings, "gave neither a token nor a certificate with its key")
        if "expirationTimestamp" in status:
            self.expiry = parse_rfc3339(status["expirationTimestamp"])  # type: ignore[no-untyped-call]
        return True

    def _file(self, status: dict[str, Any], name: str) -> str | None:
        data = FileOrData(status, None, data_key_name=name, base64_file_content=False)  # type: ignore[no-untyped-call]
        return data.as_file() or None  # type: ignore[no-untyped-call]


def _run(settings: Any, provider: Any) -> dict[str, Any]:
    interactive = settings.safe_get("interactiveMode") != _NEVER and sys.stdin.isatty()
    spec: dict[str, Any] = {"interactive": interactive}
    if provider.cluster:
        spec["cluster"] = {**provider.cluster.value}
        for extension in spec["cluster"].get("extensions") or ():
            if extension.get("name") == "client.authentication.k8s.io/exec":
                spec["cluster"]["config"] = extension.get("extension")
    info = {"apiVersion": provider.api_version, "kind": "ExecCredential", "spec": spec}
    try:
        process = subprocess.run(
            provider.args,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **provider.env, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            check=False,
        )
    except OSError as exc:
        hint = settings.safe_get("installHint") or "install it, or correct the kubeconfig"
        raise _error(settings, f"cannot be run ({exc.strerror})", str(hint)) from None
    if process.returncode:
        raise _error(settings, f"failed with exit code {process.returncode}")
    try:
        credential = json.loads(process.stdout)
        status, version = credential["status"], credential["apiVersion"]
    except (ValueError, LookupError, TypeError):
        raise _error(settings, "did not print an ExecCredential") from None
    if version != provider.api_version or not isinstance(status, dict):
        raise _error(settings, f"did not print an ExecCredential of {provider.api_version}")
    return status


def _error(settings: Any, problem: str, cure: str = "its message is above") -> KubeconfigError:
    command = settings.safe_get("command")
    return KubeconfigError(
        messages.escape(f"credential plugin {command} {problem}: {messages.shorten(cure)}")
    )
