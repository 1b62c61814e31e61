"""Training objectives: tasks (who predicts what), losses (scores -> number), weightings (how much of it)."""
