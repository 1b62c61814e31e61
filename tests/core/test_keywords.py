"""Every public function, and every method of what is opened, answers a wrong keyword with the nearest right one."""

import inspect
import pickle
from types import FunctionType

import fullrank as fr
from refusals import refused


def public() -> list:
    """Functions of `fr.__all__`, and the public methods of the two classes that answer."""
    functions = [getattr(fr, name) for name in fr.__all__ if name not in ("Click", "Clicks", "attended")]
    methods = [one for cls in (fr.Predictor, fr.Cascade) for name, one in vars(cls).items() if not name.startswith("_")]
    return [one for one in (*functions, *methods) if isinstance(one, FunctionType)]


def test_a_wrong_keyword_of_any_public_function_names_the_nearest() -> None:
    asked = 0
    for function in public():
        parameters = inspect.signature(function).parameters
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            continue
        for right in (name for name in parameters if name != "self" and len(name) > 3):
            with refused("unknown-argument", function.__name__, f"did you mean {right!r}"):
                function(**{f"{right}_": None})
            asked += 1
    assert asked > 200
    with refused("unknown-argument", "'filter'", "'filters'"):
        fr.recommend("runs/any", filter={"in_stock": True})
    with refused("unknown-argument", "'set'"):
        fr.train("sasrec", sett=["seed=1"])


def test_every_annotation_of_a_door_can_be_read() -> None:
    """Also those whose names a linter does not follow: the bounds."""
    doors = [function.checks() for function in public() if hasattr(function, "checks")]
    assert len(doors) > 12 and all(doors)


def test_they_are_the_functions_of_their_modules() -> None:
    for function in public():
        if "." not in function.__qualname__:
            assert pickle.loads(pickle.dumps(function)) is function
