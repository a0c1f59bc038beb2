"""The commands of `holdfast`: one module each, imported when its command is called."""
