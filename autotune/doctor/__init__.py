"""What breaks a model's graph or has it compiled again, with cost and fix; and what a machine lacks.

Imports `planning` and the rows above it; never `tuning`."""
