"""The composites under the name that coreai-torch gives them."""

from coreai_onnx.composites import *  # noqa: F403
from coreai_onnx.composites import __all__  # noqa: F401
