"""What a model is trained for: tasks (who predicts what), losses (scores -> number), weightings (how much of it)."""
