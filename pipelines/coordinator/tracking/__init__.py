"""Copies of a run's figures for TensorBoard and MLflow, made from the coordinator's artifacts and nothing else."""
