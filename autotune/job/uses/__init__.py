"""What a job does with a model under a config, one module a kind of use."""
