"""Fuzzing: good files, broken in every way that a seed can name, for every reader of files from elsewhere.

    good.py: a folder ──> edits.py: one to four edits ──> child.py, watched, has it read by readers.py
                                                               ──> campaign.py: what failed, made small

A case is a reader, one of its good folders and a list of edits, as JSON: that is all it takes to try it again.
`python -m fuzzing --help` tells how; `make fuzz` runs all readers for as long as one likes.
"""
