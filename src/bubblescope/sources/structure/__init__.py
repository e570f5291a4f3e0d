"""Passes of a pipeline that nothing names, told by the structure of what a process ran.

What every trace of PyTorch has, marked or not, is the order in which autograd numbered its operators,
and in which its engine came back to them. That tells the forwards and backwards of a process, and which
of them belong together (`autograd`, `unmarked`); their order tells which chunk and which micro-batch
each is of (`chunks`), who sent to whom the stages (`peers`), and when they ran whether those can be
believed (`believable`). Where there are no such numbers, an order of forwards and backwards that one
schedule alone has tells as much (`turn_order`).
"""
