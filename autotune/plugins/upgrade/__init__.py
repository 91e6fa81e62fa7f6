"""`verify --against ENVIRONMENT`: what another release changes for an exported config."""
