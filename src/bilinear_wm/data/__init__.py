"""Episodes on disk: files, windows, recording and inspection. No torch."""
