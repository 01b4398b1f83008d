"""What runs have shown, for people: a table in the terminal and a page to keep."""
