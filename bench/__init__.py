"""What a review costs here, for Holdfast's server and for the usual ways to serve one."""
