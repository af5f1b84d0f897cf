"""Settings of all tests."""

from hypothesis import settings

# A busy machine is no fault of the code: no test fails for being slow.
settings.register_profile("anabranch", deadline=None)
settings.load_profile("anabranch")
