"""Passes that change how data lies in memory."""
