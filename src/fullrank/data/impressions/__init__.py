"""Impressions with a label: from a table to the store that ranking models train on."""
