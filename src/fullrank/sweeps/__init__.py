"""Many runs instead of one: grids of settings over seeds, and equal-budget searches on validation.

    sweep(Grid.read("grid.yaml"), store, "runs/grid", max_hours=2)      # fullrank.sweeps.sweep
    tune(Search.read("space.yaml"), store, "runs/tuned")                # fullrank.sweeps.tune

Both turn their file into `Job`s (one Experiment each, all of them built before the first one runs),
measure what the jobs will cost, run those that fit the time allowed, and keep one row of JSON per
finished job. Cut off at any moment, the same call goes on where it stopped.
"""
