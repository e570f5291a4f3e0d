"""The model: what a run is, and the few things that everything else is made of."""
