"""Catalogues of what bubblescope says; `python -m catalogues` brings them up to date with the code."""
