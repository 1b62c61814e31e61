"""Sequential recommenders: items, encoder, task, loss, weighting and penalties, one folder for each choice."""
