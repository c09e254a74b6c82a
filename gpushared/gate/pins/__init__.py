"""Mount sources held in place: opened as the caller, and given to the engine as mounts nobody can swap."""
