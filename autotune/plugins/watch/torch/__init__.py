"""How calls of PyTorch's modules are seen, kept and built again. Loaded where PyTorch is imported."""
