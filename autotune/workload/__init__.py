"""What is tuned: a user's function as data, what its author declared, and the traffic that it will see.

The only place that imports a user's code. Imports `measure` and the modules at the top."""
