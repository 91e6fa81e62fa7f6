"""What no core needs, behind the doors that a package of somebody else uses: entry points of `pyproject.toml`.

Nothing outside of this folder imports it or names it; a plugin imports whatever it needs, but no other plugin."""
