"""Studies whose records are in a PostgreSQL database, for several machines (docs/shared-studies.md)."""
