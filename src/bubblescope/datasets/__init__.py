"""Making datasets: the traces of a run, however many, as partitioned Parquet that is read in part.

Workers read a few traces each and write their part; what comes back to the process that asked is what
a catalogue says of it. `bubblescope.sources.dataset` says how a dataset lies on disk, and reads it.
"""
