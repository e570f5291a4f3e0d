"""Structure-aware fuzzing of everything that bubblescope reads (docs/reliability.md)."""
