"""What a study says: derived from its records, never stored; and its export.

Imports `tuning`, `study` and the rows above them."""
