"""The next config to try: a Gaussian process over the configs of the space that were not tried."""
