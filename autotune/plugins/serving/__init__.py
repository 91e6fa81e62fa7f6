"""A model under a deadline: tiers; shapes compiled one by one as they pay off; statistics for Prometheus."""
