"""A page of a dataset that fits into no memory: blocks, made once and read as they are asked for.

`block_writing` has workers lay out each part of the run as the page shows it, `telling` says what the
page tells of all of it, and `served` answers a viewer out of the blocks in sight. `block_files` is what
they agree on.
"""
