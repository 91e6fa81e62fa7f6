"""Numbers: what a trial measured, what is minimised or bounded, and the way from samples to a verdict.

No process is started and no framework is imported here. Imports only the modules at the top of `autotune`."""
