"""The rows of the benchmark: each module measures one thing and returns its figures."""
