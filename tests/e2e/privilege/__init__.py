"""The rows of docs/explanation/security.md that need a whole installation.

The tests use the shipped manifests, a controller and an admission server with the tokens of their
ServiceAccounts, and a namespace whose pods an admin confines to one node.
"""
