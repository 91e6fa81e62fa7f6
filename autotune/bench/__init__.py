"""Who runs trials: processes of this machine, or workers of a cluster (`ray`).

Nothing above it knows which. Imports `study` and the rows above it."""
