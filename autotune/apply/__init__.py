"""A config put on a model: the same code in a trial and in a job.

Imports `backends`, `space`, `tuned` and the rows above them."""
