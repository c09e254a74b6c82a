"""Hold the sources of users' mounts in place, as mounts that users cannot replace."""
