"""Which configs there are: a YAML file in, an enumeration of configs out.

Knows no study. Imports `workload`, `measure` and the modules at the top."""
