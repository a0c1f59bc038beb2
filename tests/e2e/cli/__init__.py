"""The commands for users, against a real control plane."""
