"""What a person thinks of single cases on a hospital's own page. It stays at the hospital."""
