"""The controller that releases held pods."""
