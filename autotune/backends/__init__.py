"""What a framework offers the tool, one framework a sub-package.

Never starts a process. Imports `workload`, `measure` and the modules at the top."""
