"""The interactive timeline of a run that is too large for one file, served to a browser here."""
