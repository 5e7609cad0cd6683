"""The settings of a YAML file: a frozen dataclass for each part, and checks between parts."""
