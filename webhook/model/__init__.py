"""Kubernetes objects, annotations and edits as plain data."""
