"""A model in several tiers: each call takes the best that its deadline allows."""
