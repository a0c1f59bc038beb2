"""The AdmissionReview sent to every server: a Deployment's pod as the API server sends it, 4 KB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

ANNOTATION, GATE = "delay", "holdfast.dev/delay"
HEAD = (
    "POST {path}{query} HTTP/1.1\r\nHost: 127.0.0.1:9443\r\n"
    "User-Agent: kube-apiserver-admission\r\nAccept: application/json, */*\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\nAccept-Encoding: gzip\r\n\r\n"
)
"""The request head that the API server sends before a review."""

_UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
_TOKEN = "kube-api-access-x7k2p"  # noqa: S105 - a volume's name


def pod(annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    """Return a pod with the fields that the API server defaults; `spec` replaces spec fields."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "web-6c5d8f7b9-",
            "namespace": "default",
            "creationTimestamp": None,
            "labels": {"app": "web", "pod-template-hash": "6c5d8f7b9"},
            "annotations": dict({ANNOTATION: "15"} if annotations is None else annotations),
            "ownerReferences": [_owner()],
            "managedFields": [_managed_fields()],
        },
        "spec": {**_spec(), **spec},
        "status": {},
    }


def review(reviewed: Object | None = None, **request: Any) -> bytes:
    """Return the AdmissionReview of a pod's creation; `request` replaces request fields."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    content = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": _UID,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "0b1a2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:kube-system",
                    "system:authenticated",
                ],
            },
            "object": pod() if reviewed is None else reviewed,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **request,
        },
    }
    return json.dumps(content, separators=(",", ":")).encode()


def request(body: bytes, path: str = "/mutate", query: str = "?timeout=3s") -> bytes:
    """Return the complete HTTP request for `body`, serialised."""
    return HEAD.format(path=path, query=query, length=len(body)).encode() + body


def _owner() -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-6c5d8f7b9",
        "uid": "2f6a3e0c-9d0b-4b7e-8f53-0d2a2f9f6c11",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _spec() -> Object:
    return {
        "volumes": [{"name": _TOKEN, "projected": _token_volume()}],
        "containers": [
            {
                "name": "web",
                "image": "registry.example.com/web:1.4.2",
                "args": ["--listen", ":8080"],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "POD_NAME", "valueFrom": _field("metadata.name")}],
                "resources": {
                    "limits": {"memory": "256Mi"},
                    "requests": {"cpu": "100m", "memory": "256Mi"},
                },
                "volumeMounts": [
                    {
                        "name": _TOKEN,
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    }
                ],
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for taint in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _token_volume() -> Object:
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [{"path": "namespace", **_field("metadata.namespace")}],
                }
            },
        ],
        "defaultMode": 420,
    }


def _field(path: str) -> Object:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _managed_fields() -> Object:
    container: Object = {
        f"f:{field}": {}
        for field in ("args", "env", "image", "imagePullPolicy", "name", "ports", "resources")
    }
    return {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:annotations": {".": {}, f"f:{ANNOTATION}": {}},
                "f:generateName": {},
                "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}},
                "f:ownerReferences": {".": {}, f'k:{{"uid":"{_owner()["uid"]}"}}': {}},
            },
            "f:spec": {
                "f:containers": {'k:{"name":"web"}': {".": {}, **container}},
                "f:dnsPolicy": {},
                "f:enableServiceLinks": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        },
    }
