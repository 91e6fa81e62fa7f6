"""The child of a trial: build, compile, check, measure, and one outcome in the trial's folder."""
