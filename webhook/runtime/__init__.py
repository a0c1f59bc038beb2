"""Put processes together."""
