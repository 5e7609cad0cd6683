"""The settings loader: YAML text in, a frozen dataclass out, or every problem at once with its line and remedy."""
