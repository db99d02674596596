"""Episodes to checkpoints, resumable to the bit."""
