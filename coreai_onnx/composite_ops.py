"""The composites under the name that coreai-torch gives them."""

from coreai_onnx.composites import *  # noqa: F403 - one list of names, that of composites
from coreai_onnx.composites import __all__  # noqa: F401 - the same list
