"""All code that uses private APIs of torch and transformers.

``patches`` replaces functions that have no public hook, for one conversion at a time (``turns``);
``torch_names`` imports what torch does not document. ``docs/torch_versions.md`` lists both.
"""
