"""Benchmarks of Holdfast's server and controller, and of common alternatives."""
