"""Catalogues of what bubblescope says, one for each language; `python -m catalogues` brings them up to date."""
