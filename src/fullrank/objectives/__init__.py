"""What a model is trained for: tasks (who predicts what) x losses (scores -> number) x weightings (how much it counts)."""
