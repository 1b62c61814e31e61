"""A served model in its simplest form, runs to make versions of, and a history store that is worked with and closed."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import fullrank as fr
from fullrank.data.events.catalog import Catalog
from fullrank.models import AS_TRAINED
from fullrank.run import Run, write_copy
from fullrank.serving.requests import Answer, ItemNumbers
from fullrank.serving.stores import Event, HistoryStore, open_history_store
from markets import planted_store
from store_writer import PARTS


def items_of(catalog: Catalog) -> SimpleNamespace:
    """What a check reads of live items, all of which are shown."""
    numbers = ItemNumbers(catalog.ids.to_list())
    return SimpleNamespace(catalog=catalog, numbers=numbers, barred=np.zeros(catalog.size, bool))


def here(step: Callable):
    """Run a step of a check at once, in this thread."""
    return step()


class Version:
    """What a canary asks of a `ServedModel`, for models that are fakes."""

    recall: float | None = None
    reads_times, ranked, budget = False, False, AS_TRAINED
    ranker_fields: Sequence[str] = ()
    features = None


class Served(Version):
    """What versions need of a `ServedModel`, over a `Predictor`."""

    def __init__(self, path: Path):
        self.name, self.run = path.name, Run.open(path)
        self.predictor = fr.load(self.run, device="cpu")
        catalog = self.predictor.catalog
        self.items = items_of(catalog)

    def answer(self, asks: Sequence) -> list:
        found = []
        for ask in asks:
            ids = self.predictor.catalog.external(ask.items).to_list()
            shown = self.predictor.recommend(
                [ids], k=ask.k, exclude=self.predictor.catalog.external(ask.excluded).to_list() or None
            )
            found.append(Answer(self.predictor.catalog.lookup(shown["item"]).tolist(), shown["score"].to_list()))
        return found


def first_run(home: Path) -> Run:
    """An item-to-item model of a small marketplace: it needs no training."""
    store = planted_store(home / "store", users=400, items=80, events_per_user=12)
    return fr.train("item_to_item", store, home / "first", device="cpu", progress=False)


def histories(store: fr.Store, users: int) -> list:
    """Users and all of their events."""
    bounds = zip(store.offsets[:users], store.offsets[1 : users + 1], strict=True)
    return [(f"u{user}", store.catalog.external(store.items[a:b]).to_list()) for user, (a, b) in enumerate(bounds)]


async def fill(store: HistoryStore, users: list) -> None:
    """Put histories into a history store."""
    for user, items in users:
        await store.add_events([Event(f"{user}-{n}", user, item, 1000.0 + n) for n, item in enumerate(items)])


def copied(run: Run, out: Path) -> Path:
    """The same run under another name, newer."""
    shutil.copytree(run.path, out)
    return out


def shuffled(run: Run, out: Path) -> Path:
    """A sealed run whose weights stand at the wrong items."""
    order = torch.randperm(run.catalog.size, generator=torch.Generator().manual_seed(0))
    tensors = {name: value[order].clone() if value.ndim and len(value) == len(order) else value
               for name, value in run.tensors().items()}  # fmt: skip
    write_copy(run, out, run.catalog, tensors, {})
    return out


def with_store(address: object, work: Callable, keep: int = 1_000_000):
    """What `work` returns, given the store at an address."""

    async def run():
        store = open_history_store(str(address), keep)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def call(name: str, user: str = "u") -> list:
    """Events that are sent at once."""
    return [Event(f"{name}/{part}", user, part, 1.0) for part in range(PARTS)]
