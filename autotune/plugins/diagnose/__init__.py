"""`diagnose`: graph breaks and recompiles of a model, with cost and fix."""
