"""The named, resumable run on disk: its question, its trials, its sampler.

The only place that uses Optuna. Imports `trial` and the rows above it."""
