"""The plugin after: a pod waits until other objects have what it asks for."""
