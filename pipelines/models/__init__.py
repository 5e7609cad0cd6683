"""Files of trained models and translators: contents, reading, and prediction."""
