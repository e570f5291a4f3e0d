"""What a training job imports in place of a vendor's own helper, a module for each vendor."""
