"""Other programs that are told of runs: MLflow, TensorBoard, traces. No round waits for any of them."""
