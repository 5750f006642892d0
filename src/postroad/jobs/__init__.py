"""The jobs of a tenant, folded from the events on `JOBS` into a file that can be thrown away."""
