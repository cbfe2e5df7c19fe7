"""Training end to end: recipes, data, models, the loop, checkpoints, sweeps."""
