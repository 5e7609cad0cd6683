"""Examples that are tensors already: their file, and their reader."""
