"""The after plugin: holds a pod until other objects meet their conditions."""
