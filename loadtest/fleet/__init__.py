"""A fleet on this machine for load tests: agents, routers in front of them, and what they use."""
