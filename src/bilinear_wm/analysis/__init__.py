"""What a model's latents say: encoding whole files, probes, diagnosis, geometry."""
