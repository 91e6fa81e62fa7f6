"""`explain`: which knobs mattered in a study, and why other configs lost."""
