"""How calls of MindSpore's Cells are seen, kept and built again. Loaded where MindSpore is imported."""
