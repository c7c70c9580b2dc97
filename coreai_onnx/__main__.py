"""``python -m coreai_onnx``: the command line."""

import sys

from coreai_onnx.cli import main

if __name__ == "__main__":
    sys.exit(main())
