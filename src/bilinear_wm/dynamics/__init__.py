"""How actions move a latent: all that a planner sees of a model."""
