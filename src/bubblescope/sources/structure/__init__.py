"""Passes of a pipeline that nothing names, told by the structure of what a process ran.

What every trace of PyTorch has, marked or not, is the order in which autograd numbered its operators,
and in which its engine came back to them. That tells the forwards and backwards of a process, and which
of them belong together (`autograd`, `unmarked`); their order tells which chunk and which micro-batch
each is of (`chunks`), and when they ran whether the stages can be believed (`believable`).
"""
