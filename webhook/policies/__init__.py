"""The admission policies that guard holds and Holdfast itself."""
