"""The plugin pace: so many pods start at a time, or are released in a period."""
