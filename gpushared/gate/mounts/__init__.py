"""Hold the sources of users' mounts in place, as mounts that nobody can replace."""
