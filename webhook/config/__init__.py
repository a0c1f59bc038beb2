"""The configuration file and its schema."""
