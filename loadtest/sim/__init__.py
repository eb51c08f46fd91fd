"""Discrete-event simulation of a fleet: the project's own scheduler, index and cache against a virtual clock.

Only the engine's compute and the transport are modelled. `docs/develop/simulator.md` says how, and what is left out.
"""
