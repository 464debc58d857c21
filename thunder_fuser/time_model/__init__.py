"""Time model: seconds of a kernel on a device, from its statements, without compiling it."""
