"""A trained model meets items and users that it was not trained on: grow, fill, and start from earlier weights."""
