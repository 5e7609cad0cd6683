"""Commands that work through a hospital's folder: predict, translate and deidentify, by one loop."""
