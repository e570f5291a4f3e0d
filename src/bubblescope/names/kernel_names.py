"""Short names of kernels: what a table can show of names that fill half a page.

A kernel's name as profilers write it is a C++ signature: return type, namespaces, template arguments
and parameters around the name of a function. The short name is that function's alone, as the
`shortName` of Nsight Systems. Where a function is no more than a wrapper, what it wraps stands behind
it in brackets: CUTLASS has one `Kernel` for all of its products, PyTorch a few kernels for everything
elementwise.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from bubblescope.names.communication_kernels import function_of

_WRAPPER: Final = re.compile(
    r"Kernel2?|device_kernel|kentry|\w*(?:elementwise|multi_tensor_apply)_kernel\w*|reduce_kernel"
)
_WRAPPED: Final = re.compile(r"\b(?:cutlass|sm\d+)_\w+|\b\w*(?:[Ff]unctor|_kernel|Ops)(?:_\w+)?\b")
_PLUMBING: Final = re.compile(
    r"gpu_kernel_impl\w*|[AB]?UnaryFunctor|BinaryFunctor|cutlass_cudnn_\w+"
)
_ADDED: Final = re.compile(r"\s*\[clone [^\]]*\]|\.kd$")
_BRACKET: Final = re.compile(r"[<(]")
_ANONYMOUS: Final = "(anonymous namespace)::"


@cache
def short_name(name: str) -> str:
    """Return the name of a kernel's function, and of what it wraps.

    >>> short_name("void at::native::(anonymous namespace)::softmax<float, 4>(float*, int)")
    'softmax'
    >>> short_name("void cutlass::Kernel<cutlass_80_gemm_64x64>(cutlass_80_gemm_64x64::Params)")
    'Kernel<cutlass_80_gemm_64x64>'
    """
    plain = _ADDED.sub("", name).replace(_ANONYMOUS, "")
    if plain.startswith("_Z"):
        return function_of(plain).rpartition("::")[2] or name
    if not _BRACKET.search(plain):
        return plain or name
    qualified, arguments = _parts(plain)
    function = qualified.split()[-1].rpartition("::")[2] if qualified.split() else ""
    if not function:
        return name
    if _WRAPPER.fullmatch(function):
        wrapped = (found[0] for found in _WRAPPED.finditer(arguments))
        if what := next((one for one in wrapped if not _PLUMBING.fullmatch(one)), None):
            return f"{function}<{what}>"
    return function


def _parts(name: str) -> tuple[str, str]:
    """Return a signature up to its parameters: what is outside of all brackets, and inside of them.

    An angle within round brackets is a comparison, or belongs to what these enclose.
    """
    outside: list[str] = []
    inside: list[str] = []
    opened: list[str] = []
    before = ""
    for sign in name:
        if sign == "(" and not opened:
            break
        if sign in "<(":
            opened.append(sign)
        elif sign == ")" and "(" in opened:
            while opened.pop() != "(":
                pass
        elif sign == ">" and opened and opened[-1] == "<" and before != "-":
            opened.pop()
            inside.append(" ")
            continue
        (inside if opened else outside).append(sign)
        before = sign
    return "".join(outside), "".join(inside)
