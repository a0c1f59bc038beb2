"""Certificates: issuing them here, keeping them fresh in the cluster."""
