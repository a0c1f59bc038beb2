"""Paths of the Kubernetes API. Pure."""

from urllib.parse import quote


def api_path(version: str, resource: str, namespace: str = "", name: str = "") -> str:
    """Return the API path of an object, such as one of the `deployments` in `apps/v1`.

    Without a name, it is the path of the list; without a namespace, that of all namespaces.
    """
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{scope}/{resource}" + (f"/{quote(name, safe='')}" if name else "")
