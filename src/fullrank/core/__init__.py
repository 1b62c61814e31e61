"""What every room may use: ragged arrays, files that are whole or absent, progress and logging. Nothing here loads
torch, and nothing here knows of models or data sets.
"""
