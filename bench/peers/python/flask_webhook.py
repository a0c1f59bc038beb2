"""The same webhook as a plain Flask application, for gunicorn's gthread worker."""

from __future__ import annotations

import base64
import json
from typing import Any

from flask import Flask, Response, jsonify, request

ANNOTATION, GATE = "delay", "holdfast.dev/delay"

app = Flask(__name__)


@app.post("/mutate")
def mutate() -> Response:
    """Add the gate if the delay is positive."""
    review = request.get_json()["request"]
    pod = review["object"]
    if int(pod["metadata"]["annotations"][ANNOTATION]) <= 0:
        return _answer({"uid": review["uid"], "allowed": True})
    gates = [*pod["spec"].get("schedulingGates", ()), {"name": GATE}]
    patch = json.dumps([{"op": "add", "path": "/spec/schedulingGates", "value": gates}])
    encoded = base64.b64encode(patch.encode()).decode()
    return _answer(
        {"uid": review["uid"], "allowed": True, "patchType": "JSONPatch", "patch": encoded}
    )


@app.post("/validate")
def validate() -> Response:
    """Reject a value that is not a number."""
    review = request.get_json()["request"]
    value = review["object"]["metadata"]["annotations"][ANNOTATION]
    if value.lstrip("+-").isdecimal():
        return _answer({"uid": review["uid"], "allowed": True})
    status = {"message": f"annotation {ANNOTATION}: {value!r} is not a number", "code": 422}
    return _answer({"uid": review["uid"], "allowed": False, "status": status})


def _answer(response: dict[str, Any]) -> Response:
    return jsonify(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    )
