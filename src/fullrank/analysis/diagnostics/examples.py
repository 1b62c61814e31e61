"""Lists of five users, the runs side by side, with titles: what a metric looks like.

The users are drawn at random by a seed of ours from those of the evaluation, so that they are the same on every page of
these data and nobody chose them for what they show. The lists are those that were evaluated.
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
"""Places of each list."""
RECENT = 5
"""Last events of a history."""
RUNS = 6
"""Most runs side by side: the most accurate ones, in the order of the page."""
SEED = 0


class ExampleLists(Section):
    """The ten best items of each run for five users, beside what they did last and chose next."""

    name = "examples"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        title = "Lists of five users"
        first = results[0]
        if not isinstance(first.store, Store):
            return Missing(cls.name, title, "the prepared dataset is not at hand.")
        prints = {one.evaluation.protocol["fingerprint"] for one in results}
        if len(prints) > 1:
            return Missing(cls.name, title, "the runs were trained on different data, which have other users.")
        chosen = example_users(results)
        if not len(chosen):
            return Missing(cls.name, title, "no user is in every evaluation.")
        whole = evaluated_users(first.store, first.evaluation.protocol)
        shown = shown_runs(results)
        users = tuple(_example(int(user), shown, results, whole, first.store) for user in chosen)
        left = [one.key for one in results if one not in shown]
        more = f" Of the {len(results)} runs, the {RUNS} most accurate are shown." if left else ""
        caption = (
            f"The {PLACES} best items of each run for {len(users)} of the users, drawn at random and not chosen. A "
            "tick marks what the user really chose next; most lists hold none, which is usual: a list shows what was "
            f"found for one next choice, the table above how often.{more}"
        )
        return Examples(cls.name, title.replace("five", str(len(users)) if len(users) < USERS else "five"), caption,
                        users)  # fmt: skip


def example_users(results: Runs) -> Int[np.ndarray, "n"]:
    """Rows of the store's users: drawn from those that every evaluation has, in ascending order."""
    common = results[0].evaluation.per_user.users
    for one in results[1:]:
        common = np.intersect1d(common, one.evaluation.per_user.users)
    rng = np.random.default_rng(SEED)
    return np.sort(rng.choice(common, min(USERS, len(common)), replace=False)).astype(np.int64)


def shown_runs(results: Runs) -> list[RunResult]:
    """At most `RUNS`."""
    best = sorted(results, key=worth, reverse=True)[:RUNS]
    return [one for one in results if one in best]


def _example(user: int, shown: Runs, results: Runs, whole: EvalSet, store: Store) -> Example:
    one = whole.take(whole.users == user)
    (history,) = one.histories.items.last(RECENT)
    targets = [int(item) for item in np.unique(one.targets.flat())]
    lists = []
    for run in shown:
        rows = run.evaluation.per_user
        items = rows.lists[int(np.searchsorted(rows.users, user)), :PLACES].tolist()
        named = tuple((item_title(run, item), item in targets) for item in items if item >= 0)
        lists.append(RankedList(run.key, run.name, look(results.index(run))["color"], named))
    titles = [item_title(shown[0], int(item)) for item in history[::-1]]
    return Example(
        readable(str(store.user_ids[user])), tuple(titles), tuple(item_title(shown[0], item) for item in targets),
        tuple(lists),
    )  # fmt: skip
