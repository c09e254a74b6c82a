"""Read requests of the Docker Engine API: endpoints, targets, bodies, fields."""
