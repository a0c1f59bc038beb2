"""Findings of `holdfast doctor`, which the status page shows as well. Pure."""
