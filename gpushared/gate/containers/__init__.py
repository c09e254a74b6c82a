"""Know whose each container is, put leases into containers, and compare containers with their leases."""
