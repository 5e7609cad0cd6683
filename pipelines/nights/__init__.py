"""A hospital's night: ask the archive, do what is new, hand results back, and account for every image."""
