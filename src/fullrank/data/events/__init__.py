"""Events of users with items: from a table to the store that recommenders train on."""
