"""What people and scripts are shown: in a terminal, as JSON, as HTML, in a notebook.

Imports `verification`, `answer` and the rows above them."""
