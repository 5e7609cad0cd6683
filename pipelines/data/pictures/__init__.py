"""Pictures in: JPEG, PNG and their label maps."""
