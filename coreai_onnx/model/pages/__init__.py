"""Results on the graph of a model: a page for browsers, data for Model Explorer, source lines."""
