"""Finished models for other software: ONNX files, MONAI bundles and model cards, made at the hospital."""
