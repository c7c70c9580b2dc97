"""What every pass works with: graphs, facts, edits, function bodies."""
