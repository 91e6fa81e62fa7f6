"""Two configs side by side, outside of a study: does an exported answer still hold, and how do two compare?

Imports `planning`, `trial` and the rows above them."""
