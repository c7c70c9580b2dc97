"""Looking into a model and comparing its executions."""
