"""Settings of the pure tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# how long an example takes says something about the machine, not about the code
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")
