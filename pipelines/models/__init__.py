"""Files of trained models and translators: what they hold, how they are read, and how they answer."""
