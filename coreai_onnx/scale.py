"""Models beyond one call: predictions over tables, and packages for servers and registries."""

from coreai_onnx.runtime.deployment.mlflow_models import log_model
from coreai_onnx.runtime.deployment.packages import package
from coreai_onnx.runtime.deployment.predictor import Predictor

__all__ = ["Predictor", "log_model", "package"]
