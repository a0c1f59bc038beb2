"""Holdfast on the embedded control plane: what `make run` and `make up` show."""
