"""What holds for every test."""

from hypothesis import settings

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("trunkline", deadline=None)
settings.load_profile("trunkline")
