"""What people and scripts are shown of a study. The only place where numbers become text.

Imports `verification`, `results` and the rows above them."""
