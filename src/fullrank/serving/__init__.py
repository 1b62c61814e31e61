"""The service: a trained recommender behind an address, its history stores, its versions, and models exported."""
