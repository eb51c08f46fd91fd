"""Which node computes a request: one cost in seconds over prefix and load. Entry: `scheduler.Scheduler.place`."""
