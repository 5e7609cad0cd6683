"""What in the settings does not go together, by subject: each check returns all problems that it finds."""
