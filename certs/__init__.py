"""Certificates: issuing them, and deciding when to renew and rotate them."""
