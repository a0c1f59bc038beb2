"""Holdfast: the work of scheduler plugins, done at admission with the stock kube-scheduler."""
