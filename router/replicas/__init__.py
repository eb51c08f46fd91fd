"""Several routers on one fleet: who belongs to it, and what each of them has under way. Entry: `replicas.Replicas`."""
