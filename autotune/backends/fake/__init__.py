"""A framework that compiles nothing: it serves the tests."""
