"""The pace plugin: limits how many pods start at a time, or are released in a period."""
