"""Holdfast: scheduler plugins' work, done at admission beside the stock kube-scheduler."""
