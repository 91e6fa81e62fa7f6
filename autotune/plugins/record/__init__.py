"""`autotune.record`: a few real calls of a job's model in a file."""
