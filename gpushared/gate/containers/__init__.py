"""Find each container's owner, put leases into containers, and compare containers with their leases."""
