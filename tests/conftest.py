"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code: no test fails for being slow.
settings.register_profile("anabranch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anabranch")
