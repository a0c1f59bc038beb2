"""What is measured: each module measures one thing and gives its figures."""
