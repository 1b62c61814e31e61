"""Tools for every room: ragged arrays, files that are whole or absent, progress, logging. Nothing here knows of models
or data sets, and only `device` and `tensor_files` load torch."""
