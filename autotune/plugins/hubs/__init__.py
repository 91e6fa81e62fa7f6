"""Models of other packages by name: `hf:NAME`, `timm:NAME`, `mindcv:NAME`, `mindone:NAME`, `mindyolo:FILE`."""
