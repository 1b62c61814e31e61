"""Lists of five users, the runs side by side, with titles: what a metric looks like.

The users are drawn at random, by a fixed seed, from those of the evaluation, so that they are
the same on every page of these data and nobody chose them for what they show. The lists are
those that were evaluated.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from fullrank.analysis.diagnostics import Missing, RunResult, Runs, Section, Shown, readable
from fullrank.analysis.report import Example, Examples, RankedList
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.results import item_title, worth
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet
from fullrank.evaluation.targets import evaluated_users

USERS = 5
"""Users that are shown."""
PLACES = 10
"""Items of each list that are shown."""
RECENT = 5
"""Last events of a history that are shown."""
RUNS = 6
"""Most runs side by side: the most accurate ones, in the order of the page."""
SEED = 0


class ExampleLists(Section):
    """The ten best items of each run for five users, beside what they did last and chose next."""

    name = "examples"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        title, store = "Lists of five users", results[0].store
        if not isinstance(store, Store):
            return Missing(cls.name, title, "the prepared dataset is not at hand.")
        if len({run.evaluation.protocol["fingerprint"] for run in results}) > 1:
            return Missing(cls.name, title, "the runs were trained on different data, which have other users.")
        chosen = example_users(results)
        if not len(chosen):
            return Missing(cls.name, title, "no user is in every evaluation.")
        eval_set = evaluated_users(store, results[0].evaluation.protocol)
        users = tuple(_example(int(user), results, eval_set, store) for user in chosen)
        more = f" Of the {len(results)} runs, the {RUNS} most accurate are shown." if len(results) > RUNS else ""
        caption = (
            f"The {PLACES} best items of each run for {len(users)} of the users, drawn at random and not chosen. A "
            "tick marks what the user really chose next; most lists hold none, which is usual: a list shows what was "
            f"found for one next choice, the table above how often.{more}"
        )
        return Examples(
            cls.name, title.replace("five", "five" if len(users) == USERS else str(len(users))), caption, users
        )


def example_users(results: Runs) -> Int[np.ndarray, "n"]:
    """Rows of the store's users, ascending: drawn from the users that every evaluation has."""
    common = results[0].evaluation.per_user.users
    for run in results[1:]:
        common = np.intersect1d(common, run.evaluation.per_user.users)
    rng = np.random.default_rng(SEED)
    return np.sort(rng.choice(common, min(USERS, len(common)), replace=False)).astype(np.int64)


def shown_runs(results: Runs) -> list[RunResult]:
    """The `RUNS` most accurate runs, in the order of the page."""
    best = sorted(results, key=worth, reverse=True)[:RUNS]
    return [run for run in results if run in best]


def _example(user: int, results: Runs, eval_set: EvalSet, store: Store) -> Example:
    """The example of one user: history, what was chosen next, and the list of each run."""
    evaluated, shown = eval_set.take(eval_set.users == user), shown_runs(results)
    (history,) = evaluated.histories.items.last(RECENT)
    targets = [int(item) for item in np.unique(evaluated.targets.flat())]
    lists = []
    for run in shown:
        rows = run.evaluation.per_user
        items = rows.lists[int(np.searchsorted(rows.users, user)), :PLACES].tolist()
        named = tuple((item_title(run, item), item in targets) for item in items if item >= 0)
        lists.append(RankedList(run.key, run.name, look(results.index(run))["color"], named))
    titles, chosen = (tuple(item_title(shown[0], int(item)) for item in items) for items in (history[::-1], targets))
    return Example(readable(str(store.user_ids[user])), titles, chosen, tuple(lists))
