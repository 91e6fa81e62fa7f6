"""What a training or serving job pays for: load a tuned config, apply it, guard it, count what happened.

Never raises unless it is asked to. Imports `apply` and the rows above it; never `trial`."""
