"""The loop of a study and all that it measures: the untuned model, noise floor, search, confirmation.

Prints nothing: what happens goes out as events. Imports `planning` and the rows above it."""
