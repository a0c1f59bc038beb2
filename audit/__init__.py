"""Whether what is pinned is known to be vulnerable (`make audit`)."""
