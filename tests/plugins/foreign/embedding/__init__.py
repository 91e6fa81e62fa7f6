"""A kind of work of somebody else's package: a model makes a vector of each row of a batch, and vectors are compared by
their directions. The worked example of docs/architecture.md: a module for each folder in which the kind has something.
"""
