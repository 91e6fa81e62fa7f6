"""Stand-ins for libraries that need a device, written from their documentation: they record and refuse, and compute
nothing that a device would. A test that passes with one says that the documentation was followed, and no more."""
