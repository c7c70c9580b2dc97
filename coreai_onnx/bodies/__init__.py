"""From composite calls and externalized modules to ONNX functions.

Importing the package imports every module in it, which registers the writers of bodies.
"""

import importlib
import pkgutil

from coreai_onnx.bodies.library import composite_functions
from coreai_onnx.bodies.modules import ModuleCalls

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["ModuleCalls", "composite_functions"]
