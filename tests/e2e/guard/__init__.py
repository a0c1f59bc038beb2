"""The guard: the admission policies on a real API server, with real users, the shipped roles, and
the controller under its own ServiceAccount. Pods are created with gates, so no webhook is needed.
"""
