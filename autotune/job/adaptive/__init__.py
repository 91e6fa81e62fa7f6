"""A model whose shapes are compiled one by one, as they pay off."""
