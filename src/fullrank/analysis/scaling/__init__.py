"""Laws that predict a run before it is paid for: how a metric grows with FLOPs, with parameters and with data.

    ladder = read_ladder("runs.csv")                # fullrank.analysis.scaling.read
    law = fit_law(ladder, "sigmoid")                # fullrank.analysis.scaling.fit
    law.predict(flops=1e15), law.interval(flops=1e15)
    advise(ladder, flops=1e15)                      # fullrank.analysis.scaling.frontier

Source: SRT, "Scaling Sequential Recommendation Models with Transformers" (SIGIR 2024), Eqs.
3 to 5 and Figures 4 to 7; Hoffmann et al. (arXiv:2203.15556) for the form of Eq. 4.
Everything is numpy; scipy solves.
"""
