"""What every framework offers, as four contracts: its runtime, its values, its models and its compiler."""
