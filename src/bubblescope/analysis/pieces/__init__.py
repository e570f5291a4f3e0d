"""Answers about a run that is given in parts, and never is in memory as a whole."""
