"""Commands that process a hospital's folder: predict, translate and deidentify share one loop."""
