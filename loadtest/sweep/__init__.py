"""Which configuration of an agent serves a model best on this machine: `trunkline sweep`."""
