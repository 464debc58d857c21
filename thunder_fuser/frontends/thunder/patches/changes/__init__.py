"""What a traced function changes outside of itself, and each call of the compiled one changes."""

from thunder_fuser.frontends.thunder.patches.changes import (
    attributes_set,
    class_attributes,
    containers_changed,
    context_variables_set,
    module_buffers,
    names_set,
)

PATCHES = (
    attributes_set,
    # Writes its changes before those of attributes, so that it wraps what writes these.
    containers_changed,
    module_buffers,
    names_set,
    # Binds them as names, and reads them before the attributes of objects.
    class_attributes,
    context_variables_set,
)
