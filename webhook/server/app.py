"""The admission webhook as a Flask application, for any WSGI server.

`holdfast serve` does not use this module: `worker.py` calls the same handler, with limits and
deadlines that a WSGI server cannot set.
"""

import flask
from werkzeug.routing import MapAdapter

from holdfast.webhook.server.handler import (
    BODY_LIMIT,
    PAGE_PATHS,
    REVIEW_PATHS,
    AdmissionHandler,
    HttpResponse,
)


class _FlaskApp(flask.Flask):
    def create_url_adapter(self, request: flask.Request | None) -> MapAdapter | None:
        """Match by path and method, regardless of the Host header."""
        if request is None:
            return None
        return MapAdapter(self.url_map, "", "/", "", "https", request.path, request.method)


def create_app(handler: AdmissionHandler) -> flask.Flask:
    """Return the Flask application."""
    app = _FlaskApp(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False  # otherwise Flask redirects //mutate

    def review() -> flask.Response:
        request = flask.request
        coding = request.headers.get("Content-Encoding", "")
        kind, peer = request.content_type or "", request.remote_addr or ""
        return _response(handler.handle(request.path, kind, request.get_data(), coding, peer))

    def page() -> flask.Response:
        return _response(handler.page(flask.request.method, flask.request.path))

    for path in REVIEW_PATHS:
        app.add_url_rule(path, path, review, methods=["POST"])
    for path in PAGE_PATHS:
        app.add_url_rule(path, path, page, methods=["GET"])
    return app


def _response(response: HttpResponse) -> flask.Response:
    return flask.Response(response.body, response.status, content_type=response.content_type)
