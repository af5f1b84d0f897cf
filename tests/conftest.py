"""Settings of all tests."""

import os

from hypothesis import HealthCheck, settings

# The same examples every time, so that a change is judged by what it changes; ANABRANCH_CHANCE=1 looks for new ones. A
# busy machine is no fault of the code: no test fails for being slow.
settings.register_profile(
    "anabranch",
    derandomize=not os.environ.get("ANABRANCH_CHANCE"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("anabranch")
