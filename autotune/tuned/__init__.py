"""The files that leave the tool: the tuned config, the compile cache.

Formats only. Imports `workload`, `measure` and the modules at the top."""
