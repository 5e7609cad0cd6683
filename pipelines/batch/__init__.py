"""Batch jobs over a folder of studies: prediction, translation, de-identification."""
