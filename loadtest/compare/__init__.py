"""Routers side by side in front of the same agents: `python -m trunkline.loadtest.compare`."""
