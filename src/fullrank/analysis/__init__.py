"""Diagnosis of trained models: rows about one run, and a page of figures about several.

    rows = fr.diagnose("runs/a").rows                     # diagnose.py: one model -> rows
    fr.report(["runs/a", "runs/b"], "report.html")        # report/: rows and metrics of runs -> one page

Each diagnostic is a class in `diagnostics/`, which makes its rows and draws them; files
there are found by looking. `diagnosis.py` has the rows and their file. A diagnostic
observes what passed through the layers in one pass over a bounded sample: of users or, of a
ranking model, of impressions (`activations.py`). `watch.py` measures a few of the same
figures while a model is trained.
"""
