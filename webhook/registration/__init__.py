"""The webhook configurations and certificates in the cluster."""
