"""Read pictures: JPEG, PNG and their label maps."""
