"""A long run in which things break: `python -m trunkline.loadtest.soak`."""
