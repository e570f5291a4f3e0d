"""Commands of `bubblescope` that stand in for a vendor's own tool, a module each."""
