"""The names that frameworks give their ranges and kernels: one grammar a framework."""
