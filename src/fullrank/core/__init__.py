"""Tools for every room: ragged arrays, files that are whole or absent, progress, logging. Nothing
here loads torch, and nothing here knows of models or data sets."""
