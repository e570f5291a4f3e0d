"""One module per framework: which of its functions are tasks, and what they say of themselves.

A hook is called with the module of the framework that it is for, once that has been imported, and with
the session. It replaces functions by ones that do the same and are recorded. `record.hooks` says which
hook waits for which module. `receipts` is what several of them need.
"""
