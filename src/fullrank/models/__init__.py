"""Models, plain PyTorch: sequential recommenders (histories to items), ranking models (impressions to clicks)."""
