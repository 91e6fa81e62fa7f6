"""`tune --sampler`: one of Optuna's samplers, or of another package, proposes the configs."""
