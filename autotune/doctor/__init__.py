"""What breaks a model's graph or has it compiled again, with cost and fix; and what a machine lacks.

Imports `planning` and what is below it; never `tuning`."""
