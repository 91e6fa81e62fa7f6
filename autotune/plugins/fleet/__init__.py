"""`fleet`: many models at a time, tuned in a night, verified, and shown as one table (docs/fleet.md)."""
