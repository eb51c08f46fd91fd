"""Writes what follows from the lists of metrics: the page about them, and Grafana dashboards."""
