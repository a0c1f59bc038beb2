"""The application that all servers of the bench run: parse a review, answer with a patch."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import flask
import msgspec

from webhook.asgi import REVIEW, Bridge


class Request(msgspec.Struct):
    """The part of a review's request that is used."""

    uid: str
    object: dict[str, Any]


class Review(msgspec.Struct):
    """An AdmissionReview."""

    request: Request


_decode = msgspec.json.Decoder(Review).decode
_encode = msgspec.json.Encoder().encode


def answer(review: Review) -> bytes:
    """Allow the pod, with a gate added."""
    patch = _encode([{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "bench"}]}])
    return _encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {
                "uid": review.request.uid,
                "allowed": "delay" in review.request.object["metadata"]["annotations"],
                "patchType": "JSONPatch",
                "patch": b64encode(patch).decode(),
            },
        }
    )


def make_flask() -> flask.Flask:
    """Make the Flask application; it takes the bridge's review where there is one."""
    app = flask.Flask("bench")

    @app.post("/mutate")
    def mutate() -> flask.Response:
        review = flask.request.environ.get(REVIEW) or _decode(flask.request.get_data())
        return flask.Response(answer(review), mimetype="application/json")

    return app


def make_bridge() -> Bridge:
    """Put the Flask application behind Holdfast's bridge."""
    return Bridge(make_flask(), prepare=lambda body: (_decode(body), False))


class BareBridge(Bridge):
    """No Flask and no WSGI: what the rest of the way costs."""

    def __init__(self) -> None:
        super().__init__(make_flask(), prepare=lambda body: (_decode(body), False))

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        chunks: list[bytes] = []
        more = True
        while more:
            message = await receive()
            chunks.append(message["body"])
            more = message["more_body"]
        body = answer(_decode(b"".join(chunks)))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
