"""The settings loader: turn YAML text into a frozen dataclass, or report all problems with their lines and remedies."""
