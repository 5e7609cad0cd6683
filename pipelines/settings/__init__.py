"""What a YAML file may say: a frozen dataclass for each part, and checks of what must agree between parts."""
