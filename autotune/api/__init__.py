"""What the command line and Python programs call: from what was asked to a result. It parses no flags.

Prints nothing but the progress of a study, for a caller who wants it. Imports `render` and the rows above it.
"""
