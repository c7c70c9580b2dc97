"""All that reaches into the private parts of torch and transformers.

``patches`` replaces what these libraries offer no hook for, one conversion at a time (``turns``);
``torch_names`` imports what torch does not document. ``docs/torch_versions.md`` lists both.
"""
