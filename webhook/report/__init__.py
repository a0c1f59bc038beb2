"""Text and HTML for the commands and the status page, without I/O."""
