"""PyTorch: eager or `torch.compile`.

The only place, beside the bundled models, that imports torch."""
