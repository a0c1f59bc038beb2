"""The usual ways to do what Holdfast does, and how they are built."""
