"""Queues that delay, back off and share fairly."""
