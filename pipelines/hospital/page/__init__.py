"""The hospital's own report page. It stays at the hospital."""
