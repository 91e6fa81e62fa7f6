"""What a trial calls: one shape, a stream of many shapes, or training steps. See `calls.Calls`."""
