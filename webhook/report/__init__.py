"""Text and HTML of the commands and the status page, without I/O."""
