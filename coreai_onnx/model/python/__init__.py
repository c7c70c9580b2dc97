"""Models as Python source: written, built again, and as text for reviews."""
