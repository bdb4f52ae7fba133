"""The paper's idea, as pure functions: masks, annealing, growth, losses.

Two variants run through all of it: "weights" (DGMw, a mask entry per weight) and "units" (DGMa, a mask entry
per output unit). Nothing here knows of tasks' data, of networks or of optimisers.
"""
