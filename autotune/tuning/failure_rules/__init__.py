"""Which settings make trials fail: found from failures, kept for later studies."""
