"""The file that a rank records to: what its writer and its readers share.

One Arrow IPC stream that grows by whole messages. Every flush is one write of complete record batches,
so the file is a valid stream at any moment: readable while it is written, and after the process was
killed. The format is that of
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format, so any Arrow library reads it.

The first row is the header: its `name` holds JSON that describes the rank. What writes runs inside of
training jobs, so nothing there loads more than NumPy; `reader` and `follow` load Polars.
"""
