"""What the command line and Python programs call: from what was asked to a result. It parses no flags.

Nothing is printed here but the progress of a study, for a caller who wants it.
"""
