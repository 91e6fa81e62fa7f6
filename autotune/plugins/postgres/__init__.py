"""Studies whose records are in a PostgreSQL database, for several machines (docs/many-machines.md)."""
