"""What the pipeline found out, served to whoever asks."""
