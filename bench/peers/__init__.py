"""The peers: common alternatives to Holdfast, and how to build them."""
