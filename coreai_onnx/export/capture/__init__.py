"""From what a user gives to an exported program."""
