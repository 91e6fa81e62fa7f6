"""Statistics of a loaded model for Prometheus."""
