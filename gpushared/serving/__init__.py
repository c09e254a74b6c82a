"""What both daemons need to serve: who calls, over which protocol, and the life of a service."""
