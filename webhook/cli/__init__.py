"""The commands of `holdfast`. Each module is imported only when its command runs."""
