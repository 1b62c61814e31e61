"""Models, plain PyTorch: `sequential/` (histories in, items out), `ranking/` (impressions in, probabilities out)."""
