"""What `make gpu` measures on one CUDA device: ``python -m benchmarks.gpu --json --out results/gpu``.

One file a section, with a function ``rows(where)`` that yields one JSON object a figure. Each section runs in a process
of its own with a time limit, and every row is written as it is made: a section that fails, hangs or breaks the device
costs its own rows alone. Nothing is downloaded; all data is generated. ``--device cpu --small`` runs every section at
tiny sizes, the Triton kernels in their interpreter: that tests the script, and its figures mean nothing.
"""
