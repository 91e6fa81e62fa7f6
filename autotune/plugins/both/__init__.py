"""`--framework both`: a study for each of two frameworks, and their answers side by side."""
