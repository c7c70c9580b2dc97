"""Every model class of transformers, small, exported and compared."""
