"""All that can be asked, once: its faces are the command line, the Python API, environment variables and files of
flags. Imports nothing but the modules at the top of the package."""
