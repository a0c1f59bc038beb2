"""Make what people install: the Helm chart, and the files of a release."""
