"""The Kubernetes client and what is built on it."""
