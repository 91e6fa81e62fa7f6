"""Bundled models written for MindSpore; each module has one public builder of the module's name."""
