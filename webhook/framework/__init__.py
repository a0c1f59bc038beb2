"""The plugin framework: extension points, profiles, and the pipeline."""
