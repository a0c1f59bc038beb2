"""The Kubernetes client, and modules built on it."""
