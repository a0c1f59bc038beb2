"""The programs behind `make run` and `make up`: Holdfast on the embedded control plane."""
