"""What a machine lacks. Imports `planning` and the rows above it; never `tuning`."""
