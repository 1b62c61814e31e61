"""Fixtures of this folder: a file of item vectors, as those of semantic ids have it."""

from tests.semantic_ids.conftest import vector_file

__all__ = ["vector_file"]
