"""The run-time type checker that pytest puts on every function of fullrank (see addopts in pyproject.toml)."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""beartype, but an int is accepted where a float is asked for, as type checkers and Python itself do."""
