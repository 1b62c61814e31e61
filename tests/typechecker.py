"""The run-time type checker of `make test-all`: beartype by jaxtyping's import hook (`--jaxtyping-packages`)."""

from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))
"""beartype, but an int is accepted where a float is asked for, as type checkers and Python itself do."""
