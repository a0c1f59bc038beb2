"""Build the Helm chart and the files of a release."""
