"""One measurement in a process of its own: the contract, the child and the parent.

Knows no Optuna and no study. Imports `apply` and the rows above it."""
