"""The traffic of `loadtest/locustfile.py`, and its figures. Nothing here imports locust, which patches sockets."""
