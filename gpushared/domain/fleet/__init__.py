"""Many hosts as places for requests: which fit, which is best, and taking a decision back."""
