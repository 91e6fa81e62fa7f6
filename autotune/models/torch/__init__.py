"""Bundled models written for PyTorch; each module has one public builder of the module's name."""
