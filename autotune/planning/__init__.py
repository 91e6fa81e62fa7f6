"""From what was typed, or called, to a manifest: model, framework, device, space and the defaults for the rest.

Imports `study` and the rows above it."""
