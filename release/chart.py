"""`python -m release.chart`: generate the files of charts/holdfast from manifests/.

A template is a manifest with edits. An edit whose text is missing from the manifest is an error,
which catches manifests that change without their edits. tests/tooling compares the output of helm
and kustomize.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.policies import builder
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.runtime import pipelines
from release import values
from release.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "holdfast"
MANIFESTS = ROOT / "manifests"
REFERENCE = ROOT / "docs" / "reference" / "chart.md"
COMMAND = "python -m release.chart"

NAMESPACE = "{{ .Release.Namespace }}"
CONFIGURATION = '{{ include "holdfast.configuration" . }}'
_SELECTORS = ("namespaceSelector", "objectSelector")
CONFIG_MAP = '{{ include "holdfast.configMap" . }}'


class Edit(NamedTuple):
    """Replaces `old` with `new`; `old` must occur exactly `times` times."""

    old: str
    new: str
    times: int = 1


class Template(NamedTuple):
    """A template: a manifest, its edits, and a condition for the whole file."""

    source: str
    edits: Sequence[Edit] = ()
    condition: str = ""


def only(condition: str, text: str) -> str:
    """Return lines that are rendered if `condition` is true."""
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def guarded(text: str, condition: str) -> Edit:
    """Return an edit that renders lines of a manifest only if `condition` is true."""
    return Edit(text, only(condition, text))


def after(text: str, addition: str) -> Edit:
    """Return an edit that adds lines after `text`."""
    return Edit(text, text + addition)


_USER = "        runAsUser: 65532\n        runAsGroup: 65532\n"
_SELECTOR = (
    "      nodeSelector: {kubernetes.io/os: linux}"
    "  # Windows nodes would otherwise be chosen, too\n"
)
_STICKY = """\
          env:
            # sticky VMs need KubeVirt and more permissions: manifests/kubevirt removes this
            - {name: HOLDFAST_DISABLE_PLUGINS, value: sticky}
"""
_ZONES = """\
        - topologyKey: topology.kubernetes.io/zone
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: *labels
          matchLabelKeys: [pod-template-hash]
"""
_SPREAD = "          matchLabelKeys: [pod-template-hash]\n"
_API_PORTS = """\
        {{- range .Values.networkPolicy.apiServerPorts }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
"""


def _deployment(component: str, memory: str) -> list[Edit]:
    """Return the edits that both Deployments share."""
    resources = (
        f"            requests: {{cpu: 50m, memory: {memory}}}\n"
        "            limits: {memory: 512Mi}\n"
    )
    return [
        Edit(f"/version: {VERSION}\n", "/version: {{ .Chart.AppVersion }}\n"),
        Edit("            name: holdfast-config\n", f"            name: {CONFIG_MAP}\n"),
        Edit(_SELECTOR, '{{- include "holdfast.scheduling" . | nindent 6 }}\n'),
        guarded(_USER, "not .Values.openshift"),
        Edit(
            "          image: holdfast\n",
            '          image: {{ include "holdfast.image" . }}\n'
            "          imagePullPolicy: {{ .Values.image.pullPolicy }}\n",
        ),
        guarded(_STICKY, "not .Values.kubevirt.enabled"),
        Edit(
            resources, f"            {{{{- toYaml .Values.resources.{component} | nindent 12 }}}}\n"
        ),
    ]


_CLIENT_CA = ".Values.clientCA.enabled"
_PROBE = "port: https, scheme: HTTPS}"
_WEBHOOK = Template(
    "base/webhook.yaml",
    [
        Edit("  replicas: 2\n", '  replicas: {{ include "holdfast.replicas" . }}\n'),
        Edit(
            "      maxUnavailable: 0\n      maxSurge: 1\n",
            "      maxUnavailable: {{ .Values.hostNetwork | ternary 1 0 }}\n"
            "      maxSurge: {{ .Values.hostNetwork | ternary 0 1 }}\n",
        ),
        Edit(
            "      automountServiceAccountToken: false\n",
            "      automountServiceAccountToken: {{ .Values.kubevirt.enabled }}\n"
            + only(
                ".Values.hostNetwork",
                "      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n",
            ),
        ),
        *_deployment("webhook", "64Mi"),
        guarded("        fsGroup: 65532\n", "not .Values.openshift"),
        after(_SPREAD, only(".Values.highAvailability", _ZONES)),
        after(
            "            - --drain=12\n",
            only(
                "ne (int .Values.port) 8443",
                "            - --port={{ .Values.port }}\n",
            )
            + only(
                _CLIENT_CA,
                "            - --client-ca=/etc/holdfast-client-ca/ca.crt\n"
                "            - --health-port=8082\n"
                "{{- range .Values.clientCA.names }}\n"
                '            - {{ printf "--client-name=%s" . | toJson }}\n'
                "{{- end }}\n",
            ),
        ),
        Edit(
            "              containerPort: 8443\n",
            "              containerPort: {{ .Values.port }}\n"
            + only(_CLIENT_CA, "            - {name: health, containerPort: 8082}\n"),
        ),
        Edit(_PROBE, '{{ include "holdfast.probe" . }}}', 3),
        after(
            "            - {name: tls, mountPath: /run/holdfast/tls, readOnly: true}\n",
            only(
                _CLIENT_CA,
                "            - {name: client-ca, mountPath: /etc/holdfast-client-ca,"
                " readOnly: true}\n",
            ),
        ),
        after(
            "            defaultMode: 0440\n",
            only(
                _CLIENT_CA,
                "        - name: client-ca\n"
                "          configMap:\n"
                "            name: {{ .Values.clientCA.configMap }}\n",
            ),
        ),
    ],
)
_CONTROLLER = Template(
    "base/controller.yaml",
    [
        Edit("  replicas: 2\n", "  replicas: {{ .Values.replicas.controller }}\n"),
        *_deployment("controller", "96Mi"),
        Edit(
            "            - --certificates=self\n",
            "            - --certificates={{ .Values.certManager.enabled | ternary"
            ' "cert-manager" "self" }}\n'
            + only(_CLIENT_CA, "            - --webhook-health-port=8082\n")
            + only(
                ".Values.callLast",
                f"            - --webhook-configuration={CONFIGURATION}\n",
            )
            + only(".Values.statusPort", "            - --status-port={{ .Values.statusPort }}\n"),
        ),
    ],
)
_PODS_OF_WEBHOOK = """\
    - to:
        - podSelector:
            matchLabels:
              app.kubernetes.io/name: holdfast
              app.kubernetes.io/component: webhook
      ports:
        - {protocol: TCP, port: https}
"""
_HEALTH = "        - {protocol: TCP, port: health}\n"
_NETWORK = Template(
    "base/network.yaml",
    [
        Edit(
            "  ingress:\n    - ports:\n        - {protocol: TCP, port: https}\n"
            "  # no egress: the admission server calls no other server; the component kubevirt "
            "opens the API server's port\n",
            "  ingress:\n    - ports:\n        - {protocol: TCP, port: https}\n"
            + only(_CLIENT_CA, _HEALTH)
            + only(".Values.kubevirt.enabled", f"  egress:\n    - ports:\n{_API_PORTS}"),
        ),
        Edit(
            "        - {protocol: TCP, port: 443}\n        - {protocol: TCP, port: 6443}\n",
            _API_PORTS,
        ),
        Edit(
            _PODS_OF_WEBHOOK,
            "{{- if .Values.hostNetwork }}\n"
            "    # a NetworkPolicy cannot select pods in the nodes' network\n"
            "    - ports:\n"
            "        - {protocol: TCP, port: {{ .Values.port }}}\n"
            + only(_CLIENT_CA, "        - {protocol: TCP, port: 8082}\n")
            + f"{{{{- else }}}}\n{_PODS_OF_WEBHOOK}{only(_CLIENT_CA, _HEALTH)}{{{{- end }}}}\n",
        ),
    ],
    ".Values.networkPolicy.enabled",
)
_REGISTRATION = Template(
    "base/registration.yaml",
    [
        Edit("  name: holdfast\n", f"  name: {CONFIGURATION}\n", 2),
        Edit(
            '  annotations:\n    admissions.enforcer/disabled: "true"\n',
            '  annotations:\n    admissions.enforcer/disabled: "true"\n'
            + only(
                ".Values.certManager.enabled",
                f"    cert-manager.io/inject-ca-from: {NAMESPACE}/holdfast-webhook\n",
            ),
            2,
        ),
    ],
)
_SECRETS = """\
  # maintains the CA and the certificate; created by apply, which needs `create` and `patch`
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [holdfast-ca, holdfast-tls]
    verbs: [get, create, update, patch]
"""
_METRICS_OF_WEBHOOK = """\
    - port: https
      scheme: https
      path: /metrics
      tlsConfig:
        serverName: holdfast-webhook.holdfast-system.svc
        ca:
          secret: {name: holdfast-tls, key: ca.crt}
"""
_ENDPOINTS = "    resources: [endpointslices]\n    verbs: [list, watch]\n"
TEMPLATES = {
    "webhook.yaml": _WEBHOOK,
    "controller.yaml": _CONTROLLER,
    "network.yaml": _NETWORK,
    "registration.yaml": _REGISTRATION,
    "rbac-controller.yaml": Template(
        "rbac/controller.yaml",
        [
            guarded(_SECRETS, "not .Values.certManager.enabled"),
            Edit(
                "    resourceNames: [holdfast]\n",
                f"    resourceNames: [{CONFIGURATION}]\n",
            ),
        ],
    ),
    "rbac-after.yaml": Template(
        "rbac/after.yaml",
        [
            after(
                _ENDPOINTS,
                "{{- with .Values.after.rules }}\n  {{- toYaml . | nindent 2 }}\n{{- end }}\n",
            )
        ],
    ),
    "rbac-webhook.yaml": Template("rbac/webhook.yaml"),
    "rbac-releaser.yaml": Template("rbac/releaser.yaml"),
    "rbac-approver.yaml": Template("rbac/approver.yaml"),
    "rbac-freezer.yaml": Template("rbac/freezer.yaml"),
    "rbac-config-reader.yaml": Template("rbac/config-reader.yaml"),
    "kubevirt-controller.yaml": Template(
        "kubevirt/controller.yaml", (), ".Values.kubevirt.enabled"
    ),
    "kubevirt-webhook.yaml": Template("kubevirt/webhook.yaml", (), ".Values.kubevirt.enabled"),
    "cert-manager.yaml": Template(
        "cert-manager/certificate.yaml", (), ".Values.certManager.enabled"
    ),
    "quota.yaml": Template("high-availability/quota.yaml", (), ".Values.highAvailability"),
    "monitors.yaml": Template(
        "monitoring/monitors.yaml",
        [
            Edit(
                _METRICS_OF_WEBHOOK,
                f"{{{{- if {_CLIENT_CA} }}}}\n    - port: health\n      path: /metrics\n"
                f"{{{{- else }}}}\n{_METRICS_OF_WEBHOOK}{{{{- end }}}}\n",
            )
        ],
        ".Values.monitoring.podMonitor",
    ),
}


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the content of each generated file."""
    for name, template in TEMPLATES.items():
        yield CHART / "templates" / name, rendered(template)
    yield CHART / "templates" / "rules.yaml", _rules()
    yield CHART / "templates" / "policies.yaml", _policies()
    yield CHART / "files" / "dashboard.json", _read("monitoring/dashboard.json")
    yield CHART / "values.yaml", values.values_yaml()
    yield CHART / "values.schema.json", values.schema_json()
    yield (
        CHART / "Chart.yaml",
        re.sub(
            r"(?m)^((?:appV|v)ersion): .*$", rf"\1: {VERSION}", (CHART / "Chart.yaml").read_text()
        ),
    )
    yield REFERENCE, _with_table(REFERENCE.read_text(encoding="utf-8"))


def rendered(template: Template) -> str:
    """Return a template after its edits. Raises LookupError if the manifest does not match one."""
    text = _read(template.source)
    for edit in template.edits:
        if text.count(edit.old) != edit.times:
            raise LookupError(
                f"manifests/{template.source} has {text.count(edit.old)} times, instead of "
                f"{edit.times} times, what an edit of release/chart.py replaces:\n{edit.old}"
            )
        text = text.replace(edit.old, edit.new)
    return _template(text, f"manifests/{template.source}", template.condition)


def _template(text: str, source: str, condition: str) -> str:
    text = text.replace("holdfast-system", NAMESPACE)
    head = f"{{{{- /* Generated by `{COMMAND}` from {source}. */ -}}}}\n"
    return head + (only(condition, text) if condition else text)


def _rules() -> str:
    """Return the template of the alerts, with Prometheus' own templates escaped."""
    text = re.sub(r"{{(.*?)}}", r'{{ "{{" }}\1{{ "}}" }}', _read("monitoring/rules.yaml"))
    runbooks = "https://holdfast.example.com"
    assert runbooks in text  # noqa: S101 - must match, like an Edit
    text = text.replace(runbooks, "{{ $.Values.monitoring.runbooks }}")
    return _template(text, "manifests/monitoring/rules.yaml", ".Values.monitoring.rules")


def _policies() -> str:
    """Return the template of the guard, with the installation's namespace, keys and selectors."""
    profiles = pipelines.load_profiles(pipelines.Setup())
    profiles.selectors = Selectors(*map(_placeholder, _SELECTORS))
    names = builder.InstallationNames("holdfast-system", configuration="CONFIGURATION")
    text = builder.manifest(pod_policies.policies(profiles, names))
    deciding, recording = (
        pod_policies.deciding_keys(profiles),
        pod_policies.recording_keys(profiles),
    )
    for keys, name in ((deciding, "deciding"), (recording, "recording")):
        included = f'{{{{ include "holdfast.{name}Keys" . }}}}'
        listed = strings(keys).strip("[]")
        if listed not in text:
            raise LookupError(f"the policies do not list the {name} keys as {listed}")
        text = text.replace(listed, included)
    text = text.replace(
        " and ".join(recording),
        '{{ include "holdfast.recordingKeys" . | replace "\'" "" | replace ", " " and " }}',
    )
    for old, new in _selectors().items():
        if old not in text:
            raise LookupError(f"the policies do not contain the selector {old}")
        text = text.replace(old, new)
    text = text.replace("CONFIGURATION", CONFIGURATION)
    return _template(text, "webhook/policies", ".Values.guard.enabled")


def _selectors() -> dict[str, str]:
    """Return templates of the configured selectors, by placeholder."""
    templates = {}
    for name in _SELECTORS:
        lookup = f'dig "admission" "{name}" "%s" %s .Values.config'
        labels, (expression,) = _placeholder(name).values()
        templates[_json(labels)] = f"{{{{ {lookup % ('matchLabels', 'dict')} | toJson }}}}"
        templates[f"{_json([*expression.values()])}, "] = (
            f"{{{{ range {lookup % ('matchExpressions', 'list')} }}}}"
            "{{ concat (list .key .operator) (.values | default list) | toJson }}, {{ end }}"
        )
    return templates


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _placeholder(selector: str) -> dict[str, Any]:
    expression = {"key": selector, "operator": "matchExpressions"}
    return {"matchLabels": {selector: "matchLabels"}, "matchExpressions": [expression]}


def _with_table(page: str) -> str:
    begin, end = "<!-- values:begin -->\n", "<!-- values:end -->"
    head, _, tail = page.partition(begin)
    return f"{head}{begin}\n{values.values_table()}\n\n{end}{tail.partition(end)[2]}"


def _read(name: str) -> str:
    return (MANIFESTS / name).read_text(encoding="utf-8")


def main() -> None:
    """Write all generated files."""
    for path, text in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
