"""Fast functions, each beside its reference; a parity test compares them in value and gradient at odd sizes."""
