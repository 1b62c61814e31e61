"""Fast functions, each beside its slow twin; a parity test compares them in value and gradient at odd sizes."""
